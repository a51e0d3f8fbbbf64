"""Trains Transformer blocks that differ in one design decision, and reports what that decision changes.

  python train.py                                            runs the experiment `block`
  python train.py --list                                     lists all experiments and their variants
  python train.py --experiment=norm_placement --seeds=0,1
  python train.py --tune                                     tunes the learning rate of each variant first
  python train.py --connection=post --feed_forward=relu --noresidual --name=mine
  python train.py --sweep='model.connection=pre,post;optimizer.learning_rate=1e-3,4e-3'
  python train.py --config=configs/small.py --config.model.num_layers=24
  python train.py --launcher=slurm --slurm_partition=gpu --slurm_gpus=1
  python train.py --compare=runs/block/baseline,runs/custom/mine   reports on existing runs
  python train.py --status                                   shows the status of the runs in the workdir
  python train.py --extend --config.run.steps=600            trains existing runs for more steps

After an interruption, the same command resumes its unfinished runs; finished runs are skipped. Exit codes: 0: success;
1: a run failed; 2: invalid request; 75: stopped by SIGINT, SIGTERM or SIGHUP, run the command again to resume;
130: stopped by a second SIGINT without saving, run it again to resume from the last checkpoint.
"""

import functools
import shlex
import sys
from pathlib import Path

if __name__ == '__main__':
  sys.path[:] = dict.fromkeys([str(Path(__file__).resolve().parent), *sys.path])  # first, even with PYTHONSAFEPATH

from lab.cli import startup

if __name__ == '__main__':
  startup.prepare('train.py')  # before the imports below, which fail on Windows and read the environment

from lab.cli import output_errors, signals

if __name__ == '__main__':
  output_errors.ignore_output_errors('train.py')  # a closed terminal sends SIGHUP, and writing to it fails
  startup.check_jax('train.py', trains_here=not {'--launcher=slurm', '-launcher=slurm', 'slurm'} & {*sys.argv})

from absl import app, flags

from configs.flags import config_changes, define_config_flags
from lab.cli.command_line import new_console, parse_flags, report_error
from lab.commands import train
from lab.commands.request import TRAIN_FLAGS, TrainRequest
from lab.launch import distributed, launchers, slurm_flags
from training.config import ConfigError
from training.files import SaveFailed
from training.run_files.locks import Moved

EXPERIMENT = flags.DEFINE_string('experiment', None, 'The experiment to run; see --list. Default: block.')
STATUS = flags.DEFINE_bool(
  'status',
  False,
  'Show the status of the runs in the workdir or, with other flags, of the runs that they select; run nothing.',
)
LIST = flags.DEFINE_bool('list', False, 'List the experiments and their variants; run nothing.')
VARIANTS = flags.DEFINE_list('variants', [], 'Run only these variants of the experiment.')
SEEDS = flags.DEFINE_list(
  'seeds',
  [],
  'Seeds of the initial parameters and the data order, such as 0,1,2 or 0-4. Default: those of the experiment.',
)
WORKDIR = flags.DEFINE_string('workdir', 'runs', 'The directory of results: <workdir>/<experiment>/<variant>/seed_<k>.')
WORKERS = flags.DEFINE_integer(
  'workers', 0, 'Number of runs to train at the same time. Default: one per core, or one per GPU on a GPU host. A '
  'single run uses all cores or all GPUs. On CPUs, results do not depend on the number of workers.', lower_bound=0,
)  # fmt: skip
TUNE = flags.DEFINE_bool(
  'tune', False, 'First train every variant at each learning rate of the same grid, with seeds reserved for tuning. '
  'Then run each variant at its best learning rate, and compare them on the test split.',
)  # fmt: skip
SHARED_LEARNING_RATE = flags.DEFINE_float(
  'shared_learning_rate', None, 'Run all variants at this learning rate instead of their tuned ones.'
)
EXTEND = flags.DEFINE_bool(
  'extend', False, 'Train existing runs for more steps, for example --extend --config.run.steps=600, with all other '
  'settings unchanged. Default: the runs of block; for others, add --experiment or --name.',
)  # fmt: skip
INIT_FROM = flags.DEFINE_string(
  'init_from',
  None,
  'Start from the parameters of this run, such as runs/block/baseline/seed_0; it must have the same model.',
)
NAME = flags.DEFINE_string(
  'name',
  '',
  'The name of a custom run, which belongs to no experiment. Default: a name derived from the changed settings.',
)
SWEEP = flags.DEFINE_string(
  'sweep', '', 'Run a grid of settings, such as model.connection=pre,post;optimizer.learning_rate=1e-3,4e-3.'
)
COMPARE = flags.DEFINE_list(
  'compare', [], 'Report on the finished runs in these directories, each of an experiment, a variant, a single run or '
  'a whole work directory; the first is the baseline. Trains nothing; writes to <workdir>/compare/<--name>.',
)  # fmt: skip
LABELS = flags.DEFINE_list(
  'labels', [], 'Labels of variants in tables and figures, such as post_norm=Post-LN,baseline=Pre-Norm.'
)
ESTIMATE = flags.DEFINE_bool(
  'estimate', False, 'Compile the training step of each variant, and print its parameters, FLOPs and memory on the '
  'configured mesh, and an estimate of how long all runs take on this machine; train nothing.',
)  # fmt: skip
define_config_flags()
for module in (launchers, slurm_flags, distributed):
  flags.adopt_module_key_flags(module)  # so that --help lists them


def request() -> TrainRequest:
  """Returns the request that the flags specify."""
  return TrainRequest(
    command=shlex.join(['python', *sys.argv]),
    config_file=flags.FLAGS.config,
    changes=config_changes(),
    **{field: flags.FLAGS[field].value for field in TRAIN_FLAGS},
    given=frozenset(field for field in TRAIN_FLAGS if flags.FLAGS[field].present),
  )


def run_main(argv: list[str]) -> int:
  """Runs the request and returns the exit code; a user error is reported in one line."""
  del argv
  output_errors.ignore_output_errors('train.py')
  try:
    return train.run_request(request(), new_console())
  except ConfigError as error:
    return report_error('train.py', error)
  except Moved as error:
    print(f'train.py: {error}', file=sys.stderr)
    return 1
  except OSError as error:
    print(f'train.py: {SaveFailed(error.filename or WORKDIR.value, error)}', file=sys.stderr)
    return 1


if __name__ == '__main__':
  signals.exit_on_signals()
  app.run(run_main, flags_parser=functools.partial(parse_flags, 'train.py'))
