"""Redraws every figure, and says of each published claim whether BlockLab's own modules bear it out.

  python reproduce.py                                   everything that fits in 15 minutes on two cores
  python reproduce.py --only=worked_example,rank_collapse
  python reproduce.py --from_logs                       redraws from runs/ alone
  python reproduce.py --scale=full                      the sizes for a GPU
  python reproduce.py --check                           names what moved since it was last run here
  python reproduce.py --list                            names what there is, with its claim and its time

Writes runs/reproduce/<name>/measured.json and its figure, and runs/reproduce/report.html with all that are there. What
is left out without --only is named at the end, with the command that makes it; --check leaves out all that trains. The
exit code is 1 if a reproduction failed or, with --check, moved, and 2 if what was asked for is not there. A verdict is
not an error.
"""

import sys
from pathlib import Path

if __name__ == '__main__':
  sys.path[:] = dict.fromkeys([str(Path(__file__).resolve().parent), *sys.path])  # first, also under PYTHONSAFEPATH

from lab.cli import start_up

if __name__ == '__main__':
  start_up.prepare('reproduce.py')  # before the imports below
  start_up.check_jax('reproduce.py')

from absl import flags
from rich.console import Console

from lab.cli import command_line
from lab.reproduce import command

FLAGS = flags.FlagValues()  # its own: train.py has some of the same names
LIST = flags.DEFINE_bool('list', False, 'List the reproductions, and run nothing.', flag_values=FLAGS)
ONLY = flags.DEFINE_list(
  'only',
  [],
  'Reproduce these alone. Default: the quickest, as many as fit in 15 minutes on two cores; the end of the '
  'output names those left out, and how to run each.',
  flag_values=FLAGS,
)
FROM_LOGS = flags.DEFINE_bool(
  'from_logs', False, 'Measure and train nothing: redraw from what is in the workdir.', flag_values=FLAGS
)
SCALE = flags.DEFINE_enum(
  'scale', 'small', ['small', 'full'], 'small: for two cores; full: for a GPU, and all of it.', flag_values=FLAGS
)
CHECK = flags.DEFINE_bool(
  'check',
  False,
  'Compare with what experiments/expected keeps, and exit with 1 if something moved. Without --only, '
  'those that need no training.',
  flag_values=FLAGS,
)
UPDATE_EXPECTED = flags.DEFINE_bool(
  'update_expected', False, 'Keep what was measured as what to expect from now on.', flag_values=FLAGS
)
WORKDIR = flags.DEFINE_string('workdir', 'runs', 'Where the results go: <workdir>/reproduce.', flag_values=FLAGS)


def main(console: Console) -> int:
  """Reproduces what the flags ask for, and returns the exit code."""
  asked = command.Request(
    list=LIST.value,
    only=tuple(ONLY.value),
    from_logs=FROM_LOGS.value,
    scale=SCALE.value,
    check=CHECK.value,
    update_expected=UPDATE_EXPECTED.value,
    workdir=WORKDIR.value,
  )
  return command.reproduce(asked, console)


if __name__ == '__main__':
  command_line.run('reproduce.py', main, FLAGS)
