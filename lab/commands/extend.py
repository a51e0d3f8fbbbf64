"""--extend: existing runs train for more steps and keep all their other settings."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from lab.analysis.tuning_results import Tuning
from lab.core.experiment import Changes, Experiment
from lab.core.find_runs import describe_runs, find_runs
from lab.core.names import name_from_changes
from lab.core.run import Run
from training.config import Config, ConfigError
from training.ideas import check_loaded
from training.identity import identity
from training.run_files.result import RESULT

STEPS = 'run.steps'


def find_custom_run(changes: Changes, workdir: Path) -> str:
  """The name of the custom run that was trained with these changes, apart from the number of steps.

  A name generated from changes contains the number of steps if that was among them.

  Raises:
    ConfigError: if there is no such run; the message lists the existing ones.
  """
  others = {path: value for path, value in changes.items() if path != STEPS}
  existing = {run.variant: run.config.run.steps for run in find_runs(workdir, 'custom').runs}
  for variant, steps in existing.items():
    original = {path: steps if path == STEPS else value for path, value in changes.items()}
    if variant in (name_from_changes(others), name_from_changes(original)):
      return variant
  raise _no_runs(name_from_changes(others), workdir)


def changed_settings(changes: Changes) -> list[str]:
  """The changed settings that determine a run's numbers, except the number of steps."""
  return [path for path in changes if path in identity(Config()) and path != STEPS]


def plan_extension(
  experiment: Experiment, planned: Sequence[Run], changes: Changes, workdir: Path, any_seed: bool
) -> list[Run]:
  """Plans the existing runs of an experiment with the requested number of steps and their other settings unchanged.

  Args:
    experiment: the variants and seeds to extend.
    planned: the same runs as if they were new, which have the requested number of steps of each variant.
    changes: from the command line, by path; of the settings that determine a run's numbers, only the steps may differ.
    workdir: the work directory.
    any_seed: whether to extend all existing seeds.

  Raises:
    ConfigError: if there is no such run, a run is damaged, the number of steps is missing, or other settings differ.
  """
  found = find_runs(workdir, experiment.name)
  if found.damaged:
    raise ConfigError(found.damaged[0])
  existing = [run for run in found.runs if run.variant in experiment.variants]
  missing = [] if any_seed else [seed for seed in experiment.seeds if seed not in {run.seed for run in existing}]
  if not existing or missing:
    raise _no_runs(f'{experiment.name}{f" with seed {missing[0]}" if missing else ""}', workdir)
  declared = {name: own if experiment.name == 'custom' else {} for name, own in experiment.variants.items()}
  steps = {run.variant: run.config.run.steps for run in planned}
  selected = [run for run in existing if any_seed or run.seed in experiment.seeds]
  runs = [_extended(run, steps[run.variant], {**changes, **declared[run.variant]}) for run in selected]
  has_steps = any(STEPS in source for source in (changes, experiment.base, *experiment.variants.values()))
  if not has_steps and all(run.config == before.config for run, before in zip(runs, selected, strict=True)):
    raise ConfigError(
      f'--extend: set the number of steps, as in --config.run.steps={2 * runs[0].config.run.steps}: the runs of '
      f'{experiment.name} have {runs[0].config.run.steps}'
    )
  return runs


def mark_tuned(runs: Sequence[Run], tuning: Tuning | None) -> list[Run]:
  """Sets `tuned` as it was when the runs were trained; for a run without a result, its learning rate determines it."""
  chosen = tuning.chosen if tuning else {}
  finished = [run for run in runs if (run.directory / RESULT).exists()]
  can_be_tuned = not finished or any(run.tuned for run in finished)

  def is_tuned(run: Run) -> bool:
    optimizer = run.config.optimizer
    return can_be_tuned and chosen.get(run.variant) == (optimizer.learning_rate, optimizer.warmup_steps)

  return [run if run in finished else dataclasses.replace(run, tuned=is_tuned(run)) for run in runs]


def _extended(run: Run, steps: int, changes: Changes) -> Run:
  check_loaded(run.config.model, run.directory)
  stored = run.config.to_flat()
  for path in changed_settings(changes):
    if stored[path] != changes[path]:
      raise ConfigError(
        f'{run.directory} has {path}={stored[path]}, but {changes[path]} is requested: --extend changes only the '
        f'number of steps; omit --config.{path}'
      )
  if steps < run.config.run.steps:
    raise ConfigError(
      f'{run.directory} holds a run of {run.config.run.steps} steps, more than the requested {steps}: train a shorter '
      'run in another --workdir'
    )
  decides = identity(run.config)
  try:
    config = run.config.replace({**{path: new for path, new in changes.items() if path not in decides}, STEPS: steps})
  except ConfigError as error:
    raise ConfigError(f'{run.label}: {error}') from None
  return dataclasses.replace(run, config=config)


def _no_runs(what: str, workdir: Path) -> ConfigError:
  existing = describe_runs(workdir)
  hint = f'existing runs: {existing}; choose some with --experiment or --name' if existing else f'{workdir} has no runs'
  return ConfigError(f'--extend: no run of {what} to extend; {hint}')
