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

from experiments import start_up

if __name__ == '__main__':
  start_up.prepare('train.py')  # before the imports below, of what Windows does not have and what reads the environment

from experiments import output, signals

if __name__ == '__main__':
  output.outlive_readers('train.py')  # a closed terminal sends SIGHUP, and takes no more text
  start_up.check_jax('train.py', trains_here=not {'--launcher=slurm', '-launcher=slurm', 'slurm'} & {*sys.argv})

from absl import app, flags
from rich import box
from rich.console import Console
from rich.table import Table

from configs.flags import config_changes, define_config_flags, load_config
from experiments import extend, launch, plan, processes, registry, slurm, tuned_rates
from experiments.command_line import new_console, parse_flags, refuse
from experiments.experiment import Changes, Experiment
from experiments.seeds import parse_seeds
from training.config import ConfigError
from training.files import SaveFailed
from training.locks import Moved
from training.paths import given_path

PROJECT = Path(__file__).parent

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
for module in (launch, slurm, processes):
  flags.adopt_module_key_flags(module)  # --help shows theirs too


def main() -> int:
  """Runs what the flags ask for, and returns the exit code."""
  console = new_console()
  if LIST.value:
    list_experiments(console)
    return 0
  if COMPARE.value:
    return compare_directories(console)
  workdir, command = given_path(WORKDIR.value, '--workdir'), shlex.join(['python', *sys.argv])
  if STATUS.value and not asks_for_runs():
    from experiments import status  # here, since what reads runs takes a second to import

    return status.show_all(workdir, console)
  experiment, changes = asked_for()
  scale = load_config(flags.FLAGS.config or str(PROJECT / experiment.config))
  chosen = plan.select(experiment, VARIANTS.value, parse_seeds(SEEDS.value))
  names = labels_of(experiment)
  runs, grid = plan.plan_runs(chosen, scale, changes, workdir), []
  extends = EXTEND.value and not TUNE.value
  if extends:
    runs = extend.plan_extension(chosen, runs, changes, workdir, any_seed=not SEEDS.value)
  if ESTIMATE.value:
    from experiments.estimate import estimate

    return estimate(runs, console, WORKERS.value)
  together = processes.ALONE if STATUS.value else processes.asked_for()
  if together.count > 1 and (TUNE.value or len(runs) > 1):
    raise ConfigError(
      f'{together.count} processes train one run together, and this is {len(runs)}: give each a command of its own'
    )
  launcher = None if STATUS.value else launch.from_flags(WORKERS.value, together)
  if launcher is not None:
    launch.check_memory(runs, together)
  if TUNE.value:
    from experiments import tune  # here, since what trains and draws takes seconds to import

    if launcher is None:
      grid = tune.plan_grid(chosen, scale, changes, workdir)
    else:
      code = tune.tune(chosen, scale, changes, workdir, launcher, console, command, EXTEND.value)
      if code is not None:
        return code
  found = tuned_rates.find(experiment.name, workdir)
  there = tuned_rates.elsewhere(found, chosen, scale, changes) if found else ''
  if extends:
    runs = extend.with_labels(runs, found)
    found = found if any(run.tuned for run in runs) else None
    if found and there:
      console.print(f'each run keeps its learning rate, which {found.path} chose at other settings ({there})')
  elif found and there:
    if tuned_rates.LEARNING_RATE not in changes:  # else it was asked for
      console.print(f'all variants run at one learning rate: {found.path} was tuned at other settings ({there})')
    found = None
  elif found and tuned_rates.LEARNING_RATE not in changes:
    runs = tuned_rates.plan_tuned(chosen, scale, changes, workdir, found)
  if launcher is None:
    from experiments import status

    return status.show([*grid, *runs], console, EXTEND.value)
  from experiments.conduct import View, conduct

  view = View(tuple(chosen.variants) if VARIANTS.value else (), names)
  return conduct(experiment, runs, launcher, console, command, EXTEND.value, found, together.index > 0, view)


def labels_of(experiment: Experiment) -> dict[str, str]:
  """What --labels calls the variants of the experiment."""
  if not LABELS.value:
    return {}
  from experiments import labels  # here, since what reads runs takes a second to import

  return labels.parse(LABELS.value, experiment.variants)


def compare_directories(console: Console) -> int:
  """Reports on runs that are there, wherever, and returns the exit code."""
  from experiments import compare, conduct

  given = [
    flag for flag in (EXPERIMENT, VARIANTS, SEEDS, SWEEP, INIT_FROM, TUNE, EXTEND, STATUS, ESTIMATE) if flag.value
  ]
  if given or config_changes() or flags.FLAGS.config:
    what = f'--{given[0].name}' if given else '--config'
    raise ConfigError(f'--compare trains nothing, and takes runs as they are: leave {what} out')
  workdir, command = given_path(WORKDIR.value, '--workdir'), shlex.join(['python', *sys.argv])
  directories = [str(given_path(directory, '--compare')) for directory in COMPARE.value if directory.strip()]
  conduct.show(*compare.compare(directories, workdir, NAME.value, LABELS.value, command), console)
  return 0


def asks_for_runs() -> bool:
  """Whether a flag says which runs are meant, so that they are those of one experiment."""
  which = (EXPERIMENT, NAME, SWEEP, VARIANTS, SEEDS, TUNE, EXTEND, SHARED_LEARNING_RATE, INIT_FROM)
  return any(flag.present for flag in which) or bool(flags.FLAGS.config or config_changes())


def asked_for() -> tuple[Experiment, Changes]:
  """The experiment that the flags name or make, and the changes they make to all of its variants."""
  changes = config_changes()
  if INIT_FROM.value and changes.setdefault('run.init_from', INIT_FROM.value) != INIT_FROM.value:
    raise ConfigError('--config.run.init_from and --init_from say different things: leave one out')
  if EXPERIMENT.value and (SWEEP.value or NAME.value):
    raise ConfigError('--sweep and --name make an experiment of their own: leave --experiment out')
  own_settings = extend.settings(changes) if EXTEND.value else changes  # to extend `block`, steps alone are given
  if SWEEP.value:
    experiment = plan.sweep_experiment(SWEEP.value, changes, NAME.value)
  elif not EXPERIMENT.value and (NAME.value or flags.FLAGS.config or own_settings):
    name = NAME.value or (extend.find_custom(changes, given_path(WORKDIR.value, '--workdir')) if EXTEND.value else '')
    experiment, changes = plan.custom_experiment(changes, name), {}
  else:
    experiment = registry.find_experiment(EXPERIMENT.value or 'block')
  return experiment, changes | shared_rate(experiment, changes)


def shared_rate(experiment: Experiment, changes: Changes) -> Changes:
  """What --shared_learning_rate changes, once it is clear that no two flags set the learning rate."""
  rate = SHARED_LEARNING_RATE.value
  if rate is None and not TUNE.value:
    return {}
  flag = '--tune' if TUNE.value else '--shared_learning_rate'
  if rate is not None and TUNE.value:
    raise ConfigError('--tune gives each variant its own rate, --shared_learning_rate all the same: leave one out')
  if experiment.name not in registry.experiment_names():
    raise ConfigError(f'{flag} is for the variants of an experiment: give one alone, as in --experiment=block')
  for path in tuned_rates.tuned_paths(experiment):
    if path in changes:
      raise ConfigError(f'{flag} and --config.{path} set the same: leave one out')
    if any(path in own for own in experiment.variants.values()):
      raise ConfigError(f'{flag}: the variants of {experiment.name} set {path} themselves')
  return {} if rate is None else {tuned_rates.LEARNING_RATE: rate}


def list_experiments(console: Console) -> None:
  """Prints every experiment, its question and its variants, and what is wrong with each file that cannot be used."""
  table = Table(box=box.SIMPLE_HEAD)
  for column in ('experiment', 'question', 'variants (the first is the baseline)', 'seeds'):
    table.add_column(column, overflow='fold')  # names that differ in their last letters stay apart
  broken = list(registry.unreadable_files().values())
  for name in registry.experiment_names():
    try:
      experiment = registry.find_experiment(name)
    except ConfigError as error:
      broken.append(str(error))
      continue
    table.add_row(name, experiment.question, ', '.join(experiment.variants), str(len(experiment.seeds)))
  console.print(table)
  for line in broken:
    console.print(f'cannot be used: {" ".join(line.split())}', soft_wrap=True)


def run_main(argv: list[str]) -> int:
  """`main`, with the user's mistakes told as such."""
  del argv
  output.outlive_readers('train.py')
  try:
    return main()
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
