"""Trains Transformer blocks that differ in one decision, and says what the decision changes.

  python train.py                                            the experiment `block`
  python train.py --list                                     the experiments there are
  python train.py --experiment=norm_placement --seeds=0,1
  python train.py --tune                                     each variant at its best learning rate
  python train.py --norm_placement=post --feed_forward=relu --noresidual --name=mine
  python train.py --sweep='model.norm_placement=pre,post;optimizer.learning_rate=1e-3,4e-3'
  python train.py --config=configs/small.py --config.model.num_layers=24
  python train.py --launcher=slurm --slurm_partition=gpu --slurm_gpus=1
  python train.py --compare=runs/block/baseline,runs/custom/mine   one report over runs that are there
  python train.py --status                                   the state of the runs in the workdir
  python train.py --extend --config.run.steps=600            more steps for the runs that are there

The same command again resumes where it stopped, and skips what is finished. Exit codes: 0; 1 if a run
failed; 2 if what was asked for is impossible; 75 if it was stopped (SIGINT, SIGTERM, SIGHUP) and should be
run again; 130 if it was stopped twice.
"""

import functools
import shlex
import sys
from pathlib import Path

if __name__ == '__main__':
  sys.path[:] = dict.fromkeys([str(Path(__file__).resolve().parent), *sys.path])  # first, also under PYTHONSAFEPATH

from lab.cli import start_up

if __name__ == '__main__':
  start_up.prepare('train.py')  # before the imports below, of what Windows does not have and what reads the environment

from lab.cli import output, signals

if __name__ == '__main__':
  output.outlive_readers('train.py')  # a closed terminal sends SIGHUP, and takes no more text
  start_up.check_jax('train.py', trains_here=not {'--launcher=slurm', '-launcher=slurm', 'slurm'} & {*sys.argv})

from absl import app, flags

from configs.flags import config_changes, define_config_flags
from lab.cli.command_line import new_console, parse_flags, refuse
from lab.commands import train
from lab.launch import distributed, launchers, slurm_flags
from training.config import ConfigError
from training.files import SaveFailed
from training.run_files.locks import Moved

EXPERIMENT = flags.DEFINE_string('experiment', None, 'Which experiment to run; see --list. Default: block.')
STATUS = flags.DEFINE_bool(
  'status', False, 'Show the state of the runs in the workdir; with other flags, of the runs of that command.'
)
LIST = flags.DEFINE_bool('list', False, 'List the experiments and their variants, and run nothing.')
VARIANTS = flags.DEFINE_list('variants', [], 'Run these variants of the experiment alone.')
SEEDS = flags.DEFINE_list(
  'seeds', [], 'Seeds of initial values and data order, as 0,1,2 or 0-4. Default: those of the experiment.'
)
WORKDIR = flags.DEFINE_string('workdir', 'runs', 'Where the results go: <workdir>/<experiment>/<variant>/seed_<k>.')
WORKERS = flags.DEFINE_integer(
  'workers', 0, 'Runs at a time. Default: one a core, each run on one core (the numbers do not depend on how many); '
  'one a GPU on a GPU host. A single run has every core, or every GPU.', lower_bound=0,
)  # fmt: skip
TUNE = flags.DEFINE_bool(
  'tune', False, 'First give every variant the same grid of learning rates, on seeds reserved for it; then run each at '
  'its best one, and compare on the test split.',
)  # fmt: skip
SHARED_LEARNING_RATE = flags.DEFINE_float(
  'shared_learning_rate', None, 'Run all variants at this rate, where an experiment has tuned ones.'
)
EXTEND = flags.DEFINE_bool(
  'extend', False, 'Train runs that are there to more steps, as in --extend --config.run.steps=600; each keeps its '
  'other settings. Default: those of block; else give --experiment or --name.',
)  # fmt: skip
INIT_FROM = flags.DEFINE_string(
  'init_from', None, 'Start from the parameters of this run, as runs/block/baseline/seed_0; its model must be the same.'
)
NAME = flags.DEFINE_string('name', '', 'The name of a run outside the experiments. Default: what was changed.')
SWEEP = flags.DEFINE_string(
  'sweep', '', 'A grid, as in model.norm_placement=pre,post;optimizer.learning_rate=1e-3,4e-3'
)
COMPARE = flags.DEFINE_list(
  'compare', [], 'Train nothing: one report over the finished runs of these directories, of any experiments, variants, '
  'runs or work directories; the first is the baseline. It goes to <workdir>/compare/<--name>.',
)  # fmt: skip
LABELS = flags.DEFINE_list(
  'labels', [], 'What variants are called in tables and figures, as in post_norm=Post-LN,baseline=Pre-Norm.'
)
ESTIMATE = flags.DEFINE_bool(
  'estimate', False, 'Train nothing: compile the step of each variant, print its parameters, FLOPs and memory on the '
  'mesh that is asked for, and say about how long all runs take here.',
)  # fmt: skip
define_config_flags()
for module in (launchers, slurm_flags, distributed):
  flags.adopt_module_key_flags(module)  # --help shows theirs too


def request() -> train.TrainRequest:
  """What the flags ask for."""
  return train.TrainRequest(
    command=shlex.join(['python', *sys.argv]),
    config_file=flags.FLAGS.config,
    changes=config_changes(),
    **{field: flags.FLAGS[field].value for field in train.TrainRequest.FLAGS},
    given=frozenset(field for field in train.TrainRequest.FLAGS if flags.FLAGS[field].present),
  )


def run_main(argv: list[str]) -> int:
  """Does what the flags ask for; what the user got wrong is one line, and code 2."""
  del argv
  output.outlive_readers('train.py')
  try:
    return train.run_request(request(), new_console())
  except ConfigError as error:
    return refuse('train.py', error)
  except Moved as error:
    print(f'train.py: {error}', file=sys.stderr)
    return 1
  except OSError as error:
    print(f'train.py: {SaveFailed(error.filename or WORKDIR.value, error)}', file=sys.stderr)
    return 1


if __name__ == '__main__':
  signals.leave_when_told()
  app.run(run_main, flags_parser=functools.partial(parse_flags, 'train.py'))
