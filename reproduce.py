"""Reproduces published claims: measures each with BlockLab's modules, derives a verdict, and draws a figure.

  python reproduce.py                                   those that fit in 15 minutes on two cores
  python reproduce.py --only=worked_example,rank_collapse
  python reproduce.py --from_logs                       redraws from runs/, measuring and training nothing
  python reproduce.py --scale=full                      every reproduction, with sizes for a GPU
  python reproduce.py --check                           lists differences from the committed values
  python reproduce.py --list                            lists all reproductions with their time and claim

Writes runs/reproduce/<name>/measured.json and a figure for each, and runs/reproduce/report.html with all results in the
work directory. Without --only, the end of the output lists the omitted reproductions, each with its command; --check
omits those that train. The exit code is 1 if a reproduction failed or, with --check, changed, and 2 if the flags
are invalid or results are missing. A claim that does not hold is not an error.
"""

import sys
from pathlib import Path

if __name__ == '__main__':
  sys.path[:] = dict.fromkeys([str(Path(__file__).resolve().parent), *sys.path])  # first, even with PYTHONSAFEPATH

from lab.cli import startup

if __name__ == '__main__':
  startup.prepare('reproduce.py')  # before the imports below
  startup.check_jax('reproduce.py')

from absl import flags
from rich.console import Console

from lab.cli import command_line
from lab.reproduce import command

FLAGS = flags.FlagValues()  # separate, since train.py defines some of the same names
LIST = flags.DEFINE_bool('list', False, 'List the reproductions without running any.', flag_values=FLAGS)
ONLY = flags.DEFINE_list(
  'only',
  [],
  'Run only these reproductions. Default: the fastest ones that fit in 15 minutes on two cores; the end of the '
  'output lists the omitted ones, each with its command.',
  flag_values=FLAGS,
)
FROM_LOGS = flags.DEFINE_bool(
  'from_logs',
  False,
  'Redraw from the results in the work directory, measuring and training nothing.',
  flag_values=FLAGS,
)
SCALE = flags.DEFINE_enum(
  'scale',
  'small',
  ['small', 'full'],
  'small: sizes for two cores; full: every reproduction, with sizes for a GPU.',
  flag_values=FLAGS,
)
CHECK = flags.DEFINE_bool(
  'check',
  False,
  'Compare with the values in experiments/expected, and exit with 1 if any changed. Default without --only: the '
  'reproductions that need no training.',
  flag_values=FLAGS,
)
UPDATE_EXPECTED = flags.DEFINE_bool(
  'update_expected', False, 'Replace the values in experiments/expected by the measured ones.', flag_values=FLAGS
)
WORKDIR = flags.DEFINE_string(
  'workdir', 'runs', 'Work directory; results are written to <workdir>/reproduce.', flag_values=FLAGS
)


def main(console: Console) -> int:
  """Runs the reproductions that the flags select, and returns the exit code."""
  options = command.ReproduceOptions(
    list=LIST.value,
    only=tuple(ONLY.value),
    from_logs=FROM_LOGS.value,
    scale=SCALE.value,
    check=CHECK.value,
    update_expected=UPDATE_EXPECTED.value,
    workdir=WORKDIR.value,
  )
  return command.reproduce(options, console)


if __name__ == '__main__':
  command_line.run_command('reproduce.py', main, FLAGS)
