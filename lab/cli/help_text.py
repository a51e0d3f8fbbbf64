"""--help: the description of a command, examples and its main flags, on one screen; --helpfull: help on every flag."""

import sys
import textwrap
from collections.abc import Sequence

from absl import flags

WIDTH = 100
SHORT, FULL = ('--help', '-help', '-h', '--h', '-?', '--helpshort'), ('--helpfull', '-helpfull')
CLUSTER_FLAGS = ('slurm_', 'coordinator', 'num_processes', 'process_id')  # prefixes of flags that only --helpfull lists
PACKAGES = ('lab', 'configs', 'train', 'inspect_gradients', 'reproduce', '__main__')


def requested_help(argv: Sequence[str], command_flags: flags.FlagValues | None = None) -> str | None:
  """Returns the help that a command line requests, or None if it requests none.

  Args:
    argv: the command line.
    command_flags: the flags of a command that defines them separately from absl's.
  """
  if any(argument in FULL for argument in argv[1:]):
    return f'{_description()}\n{flags.FLAGS.get_help()}'
  if any(argument in SHORT for argument in argv[1:]):
    return f'{_description()}\n{_main_flags(command_flags)}'
  return None


def _description() -> str:
  return (sys.modules['__main__'].__doc__ or '').strip() + '\n'


def _main_flags(command_flags: flags.FlagValues | None) -> str:
  """Formats a line for each flag, except that all fields of the config share one line."""
  lines, has_fields = [], False
  for module, flag in _in_order(command_flags or flags.FLAGS):
    name = flag.name
    if not _is_ours(module):
      continue
    if name.startswith('config.'):
      has_fields = True
    elif not name.startswith(CLUSTER_FLAGS):
      value = f'--[no]{name}' if flag.boolean else f'--{name}=...'
      lines.append(_format_line(value, _first_sentence(flag.help)))
  if has_fields:
    lines.append(_format_line('--config.SECTION.FIELD=...', 'Any field of the config, such as --config.run.steps=600'))
  return '\n'.join([*lines, '', 'Full help of all flags: --helpfull'])


def _format_line(flag: str, text: str) -> str:
  return textwrap.fill(text, WIDTH, initial_indent=f'  {flag:27} ', subsequent_indent=' ' * 30, break_on_hyphens=False)


def _in_order(values: flags.FlagValues) -> list[tuple[str, flags.Flag]]:
  """Returns each flag with its module, those of the command first, otherwise in the order of definition."""
  modules = sorted(values.flags_by_module_dict().items(), key=lambda item: item[0] != sys.argv[0])
  return [(module, flag) for module, defined in modules for flag in defined]


def _is_ours(module: str) -> bool:
  """Whether a module is part of BlockLab rather than absl or a library; absl identifies a script by its path."""
  return module == sys.argv[0] or module.split('.')[0] in PACKAGES


def _first_sentence(text: str | None) -> str:
  return ' '.join((text or '').split()).partition('. ')[0].rstrip('.')
