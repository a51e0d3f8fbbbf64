"""Carries out a request of train.py: --list, --status, --estimate, --compare; or plans, trains and reports the runs."""

from rich.console import Console

from configs.flags import load_config
from lab.analysis import tuned_learning_rates
from lab.analysis.tuning_results import Tuning
from lab.commands import extend
from lab.commands.list_experiments import list_experiments
from lab.commands.request import TrainRequest, resolve
from lab.core import plan, registry
from lab.core.experiment import Changes, Experiment
from lab.core.run import Run
from lab.core.seeds import parse_seeds
from lab.launch import distributed, launchers
from lab.launch.process_group import SINGLE_PROCESS
from training.code_version import PROJECT
from training.config import Config, ConfigError
from training.paths import parse_path
from training.run_files.run_directory import workdir_of

# Imports that take seconds, of modules that read runs, train or draw, are inside functions: --list needs none of them.


def run_request(request: TrainRequest, console: Console) -> int:
  """Carries out a request and returns the exit code.

  Raises:
    ConfigError: if the request is impossible; before anything is compiled or written.
  """
  if request.list:
    list_experiments(console, request.experiment if registry.is_path(request.experiment or '') else None)
    return 0
  if request.compare:
    return _compare(request, console)
  workdir = request.directory()
  if request.status and not request.names_runs():
    from lab.commands import status

    return status.print_workdir_status(workdir, console)
  experiment, changes = resolve(request)
  scale = load_config(request.config_file or str(PROJECT / experiment.config))
  chosen = plan.select(experiment, request.variants, parse_seeds(request.seeds))
  names = _labels(request, experiment)
  runs, grid = plan.plan_runs(chosen, scale, changes, workdir), []
  extends = request.extend and not request.tune
  if extends:
    runs = extend.plan_extension(chosen, runs, changes, workdir, any_seed=not request.seeds)
  if request.estimate:
    from lab.commands.estimate import estimate

    if request.tune:
      from lab.commands import tune

      grid = tune.plan_grid(chosen, scale, changes, workdir)
    return estimate(runs, console, request.workers, grid)
  group = SINGLE_PROCESS if request.status else distributed.from_flags_or_scheduler()
  if group.count > 1 and (request.tune or len(runs) > 1):
    raise ConfigError(
      f'{group.count} processes train one run together, but this command has {len(runs)}: start one command per run'
    )
  launcher = None if request.status else launchers.from_flags(request.workers, group)
  if launcher is not None:
    launchers.check_memory(runs, group)
  if request.tune:
    from lab.commands import tune

    if launcher is None:
      grid = tune.plan_grid(chosen, scale, changes, workdir)
    else:
      code = tune.tune(chosen, scale, changes, workdir, launcher, console, request.command, request.extend)
      if code is not None:
        return code
  tuning = tuned_learning_rates.find_tuning(experiment.name, workdir)
  if extends:
    runs, tuning = _extended(runs, tuning, chosen, scale, changes, console)
  elif tuning:
    runs, tuning = _at_tuned_rates(runs, tuning, chosen, scale, changes, console)
  if launcher is None:
    from lab.commands import status

    return status.print_status([*grid, *runs], console, request.extend)
  from lab.commands.run_experiment import ReportOptions, run_experiment

  options = ReportOptions(tuple(chosen.variants) if request.variants else (), names)
  return run_experiment(
    experiment, runs, launcher, console, request.command, request.extend, tuning, group.index > 0, options
  )


def _extended(
  runs: list[Run], tuning: Tuning | None, experiment: Experiment, scale: Config, changes: Changes, console: Console
) -> tuple[list[Run], Tuning | None]:
  """The extended runs, whose learning rates and `tuned` do not change, and the tuning that their report shows."""
  runs = extend.mark_tuned(runs, tuning)
  if tuning is None or not any(run.tuned for run in runs):
    return runs, None
  differing = tuned_learning_rates.tuning_differences(tuning, experiment, scale, changes)
  if differing:
    console.print(f'each run keeps its learning rate, which was tuned at other settings in {tuning.path} ({differing})')
  return runs, tuning


def _at_tuned_rates(
  runs: list[Run], tuning: Tuning, experiment: Experiment, scale: Config, changes: Changes, console: Console
) -> tuple[list[Run], Tuning | None]:
  """The runs at tuned learning rates and the tuning, if it applies; otherwise the runs unchanged and None."""
  differing = tuned_learning_rates.tuning_differences(tuning, experiment, scale, changes)
  rate_is_set = tuned_learning_rates.LEARNING_RATE in changes
  if differing:
    if not rate_is_set:
      console.print(f'all variants run at the same learning rate: {tuning.path} has other settings ({differing})')
    return runs, None
  if rate_is_set:
    return runs, tuning
  workdir = workdir_of(runs[0].directory)
  return tuned_learning_rates.plan_at_tuned_rates(experiment, scale, changes, workdir, tuning), tuning


def _labels(request: TrainRequest, experiment: Experiment) -> dict[str, str]:
  """The label of each variant that --labels names."""
  if not request.labels:
    return {}
  from lab.figures import labels

  return labels.parse_labels(request.labels, experiment.variants)


def _compare(request: TrainRequest, console: Console) -> int:
  """Writes a report on existing runs, and returns the exit code."""
  from lab.commands import compare, run_experiment

  trains = ('experiment', 'variants', 'seeds', 'sweep', 'init_from', 'tune', 'extend', 'status', 'estimate')
  contradicting = [f'--{flag}' for flag in trains if getattr(request, flag)]
  contradicting += ['--config'] if request.changes or request.config_file else []
  if contradicting:
    raise ConfigError(f'--compare only reports on finished runs: omit {contradicting[0]}')
  directories = [str(parse_path(directory, '--compare')) for directory in request.compare if directory.strip()]
  written = compare.write_comparison(directories, request.directory(), request.name, request.labels, request.command)
  run_experiment.print_report(*written, console)
  return 0
