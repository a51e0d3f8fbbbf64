"""Measures the gradient in each layer, split into skip path and residual branch, for a run or a config.

  python inspect_gradients.py --run=runs/block/post_norm/seed_0            its latest checkpoint
  python inspect_gradients.py --run=runs/block/post_norm/seed_0 --step=all
  python inspect_gradients.py --compare=runs/block/baseline/seed_0,runs/block/post_norm/seed_0
  python inspect_gradients.py --config=configs/tiny.py --connection=post --depths=4,8,16,32,64

Prints a table, and writes gradients.csv, gradients.json and figures to a separate directory. Gradients are measured
on the batches of the next training steps. Attention statistics are computed by a plain implementation of attention, in
addition to the kernel that the model uses.
"""

import shlex
import sys
from pathlib import Path

if __name__ == '__main__':
  sys.path[:] = dict.fromkeys([str(Path(__file__).resolve().parent), *sys.path])  # first, even with PYTHONSAFEPATH

from lab.cli import startup

if __name__ == '__main__':
  startup.prepare('inspect_gradients.py')  # before the imports below
  startup.check_jax('inspect_gradients.py')

from absl import flags
from rich.console import Console

from configs.flags import config_changes, define_config_flags
from lab.cli import command_line
from lab.inspect import command

RUN = flags.DEFINE_string('run', None, 'The directory of the run to inspect, such as runs/block/baseline/seed_0.')
COMPARE = flags.DEFINE_list('compare', [], 'Directories of runs to compare side by side.')
STEP = flags.DEFINE_string(
  'step',
  None,
  'The checkpoint of the run: latest, init (its initial parameters), all, or a step. Default: latest, with init in the '
  'files for comparison.',
)
DEPTHS = flags.DEFINE_list('depths', [], 'Inspect the config at initialisation with each of these numbers of layers.')
EXPERIMENT = flags.DEFINE_multi_string(
  'experiment', [], 'Inspect every variant of this experiment, a name or the path of a file, at initialisation. With '
  '--run or --compare: an experiment file that registered a part of the model of a run, which is executed; repeat the '
  'flag for several files.',
)  # fmt: skip
BATCHES = flags.DEFINE_integer(
  'batches', 8, 'The number of batches to measure on; the intervals are over batches.', lower_bound=2
)
OUT = flags.DEFINE_string(
  'out', None, 'The output directory. Default: RUN/gradients/<step> or, without --run, a directory in runs/gradients.'
)
define_config_flags()


def main(console: Console) -> int:
  """Measures, prints, writes and draws the gradients that the flags specify, and returns the exit code."""
  options = command.InspectOptions(
    run=RUN.value,
    compare=tuple(COMPARE.value),
    step=STEP.value,
    depths=tuple(DEPTHS.value),
    batches=BATCHES.value,
    out=OUT.value,
    config_file=flags.FLAGS.config,
    changes=config_changes(),
    experiments=tuple(EXPERIMENT.value),
    command=shlex.join(['python', *sys.argv]),
  )
  return command.inspect(options, console)


if __name__ == '__main__':
  command_line.run_command('inspect_gradients.py', main)
