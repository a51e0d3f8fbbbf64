"""Shows where the gradient goes, layer by layer and path by path, of a run or of a config.

  python inspect_gradients.py --run=runs/block/post_norm/seed_0            the newest checkpoint
  python inspect_gradients.py --run=runs/block/post_norm/seed_0 --step=all
  python inspect_gradients.py --compare=runs/block/baseline/seed_0,runs/block/post_norm/seed_0
  python inspect_gradients.py --config=configs/tiny.py --norm_placement=post --depths=4,8,16,32,64

Prints a table, and writes gradients.csv, gradients.json and figures; each question has a folder of its own. Gradients
are measured on the batches that the next training steps would take; attention weights by definition, beside the kernel
in use.
"""

import shlex
import sys
from pathlib import Path

if __name__ == '__main__':
  sys.path[:] = dict.fromkeys([str(Path(__file__).resolve().parent), *sys.path])  # first, also under PYTHONSAFEPATH

from lab.cli import start_up

if __name__ == '__main__':
  start_up.prepare('inspect_gradients.py')  # before the imports below
  start_up.check_jax('inspect_gradients.py')

from absl import flags
from rich.console import Console

from configs.flags import config_changes, define_config_flags
from lab.cli import command_line
from lab.inspect import command

RUN = flags.DEFINE_string('run', None, 'The directory of a run, as runs/block/baseline/seed_0.')
COMPARE = flags.DEFINE_list('compare', [], 'Directories of runs, to be shown side by side.')
STEP = flags.DEFINE_string(
  'step',
  None,
  'Which of the run: latest (the default; its initial values go into the files too), init, all, or a step.',
)
DEPTHS = flags.DEFINE_list('depths', [], 'Numbers of layers: the config at its initial values, once for each.')
BATCHES = flags.DEFINE_integer('batches', 8, 'How many batches the intervals are over.', lower_bound=2)
OUT = flags.DEFINE_string(
  'out', None, 'Where the files go. Default: RUN/gradients/<step>, else runs/gradients/<what was asked>.'
)
define_config_flags()


def main(console: Console) -> int:
  """Measures, prints, writes and draws what the flags ask for, and returns the exit code."""
  question = command.Question(
    run=RUN.value,
    compare=tuple(COMPARE.value),
    step=STEP.value,
    depths=tuple(DEPTHS.value),
    batches=BATCHES.value,
    out=OUT.value,
    config_file=flags.FLAGS.config,
    changes=config_changes(),
    command=shlex.join(['python', *sys.argv]),
  )
  return command.inspect(question, console)


if __name__ == '__main__':
  command_line.run('inspect_gradients.py', main)
