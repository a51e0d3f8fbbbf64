"""--help, one screen: what the command does, examples, its main flags; --helpfull: every flag with its whole text."""

import sys
import textwrap
from collections.abc import Sequence

from absl import flags

WIDTH = 100
SHORT, FULL = ('--help', '-help', '-h', '--h', '-?', '--helpshort'), ('--helpfull', '-helpfull')
OF_CLUSTERS = ('slurm_', 'coordinator', 'num_processes', 'process_id')  # in --helpfull alone


def asked_for(argv: Sequence[str], own_flags: flags.FlagValues | None = None) -> str | None:
  """The text that a command line asks for; None if it asks for none.

  Args:
    argv: the command line.
    own_flags: those of a command that defines them apart from absl's.
  """
  if any(argument in FULL for argument in argv[1:]):
    return f'{_description()}\n{flags.FLAGS.get_help()}'
  if any(argument in SHORT for argument in argv[1:]):
    return f'{_description()}\n{_main_flags(own_flags)}'
  return None


def _description() -> str:
  return (sys.modules['__main__'].__doc__ or '').strip() + '\n'


def _main_flags(own_flags: flags.FlagValues | None) -> str:
  """A line for each flag, but for those of single fields of the config, which have one together."""
  lines, fields = [], False
  for module, flag in _in_order(own_flags or flags.FLAGS):
    name = flag.name
    if not _defined_here(module):
      continue
    if name.startswith('config.'):
      fields = True
    elif not name.startswith(OF_CLUSTERS):
      value = f'--[no]{name}' if flag.boolean else f'--{name}=...'
      lines.append(_line(value, _first_sentence(flag.help)))
  if fields:
    lines.append(_line('--config.SECTION.FIELD=...', 'Any setting, as --config.run.steps=600'))
  return '\n'.join([*lines, '', 'All flags, each with its whole text: --helpfull'])


def _line(flag: str, text: str) -> str:
  return textwrap.fill(text, WIDTH, initial_indent=f'  {flag:27} ', subsequent_indent=' ' * 30)


def _in_order(values: flags.FlagValues) -> list[tuple[str, flags.Flag]]:
  """Each flag with the module that defines it, in the order they were defined in."""
  return [(module, flag) for module, defined in values.flags_by_module_dict().items() for flag in defined]


def _defined_here(module: str) -> bool:
  """Whether a module is one of ours, not absl or a library; a command's own goes by its path."""
  return module == sys.argv[0] or module.split('.')[0] in (
    'lab',
    'configs',
    'train',
    'inspect_gradients',
    'reproduce',
    '__main__',
  )


def _first_sentence(text: str | None) -> str:
  return ' '.join((text or '').split()).partition('. ')[0].rstrip('.')
