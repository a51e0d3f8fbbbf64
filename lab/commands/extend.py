"""--extend: runs that are there take more steps, and keep all their other settings as they were run."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from lab.analysis.tuning_results import Tuning
from lab.core.experiment import Changes, Experiment
from lab.core.find_runs import describe_runs, find_runs
from lab.core.names import name_from_changes
from lab.core.run import Run
from training.config import Config, ConfigError
from training.identity import identity
from training.run_files.result import RESULT

STEPS = 'run.steps'


def find_custom_run(changes: Changes, workdir: Path) -> str:
  """The name of the run outside the experiments that these changes, but for the number of steps, were given to.

  A name that was made of what was changed has the steps in it where these were given then.

  Raises:
    ConfigError: if there is none, saying what there is.
  """
  others = {path: value for path, value in changes.items() if path != STEPS}
  there = {run.variant: run.config.run.steps for run in find_runs(workdir, 'custom').runs}
  for variant, steps in there.items():
    then = {path: steps if path == STEPS else value for path, value in changes.items()}
    if variant in (name_from_changes(others), name_from_changes(then)):
      return variant
  raise _nothing(name_from_changes(others), workdir)


def changed_settings(changes: Changes) -> list[str]:
  """The paths of what is changed that decide a run, but for the number of steps."""
  return [path for path in changes if path in identity(Config()) and path != STEPS]


def plan_extension(
  experiment: Experiment, planned: Sequence[Run], changes: Changes, workdir: Path, any_seed: bool
) -> list[Run]:
  """The runs that are there of an experiment's variants, each as it was run, with the steps that are asked for.

  Args:
    experiment: the variants to extend, and the seeds.
    planned: the same as new runs: these have the steps of each variant.
    changes: given on the command line, by path: of those that decide a run only the steps may differ.
    workdir: where all experiments are.
    any_seed: whether all seeds that are there are meant.

  Raises:
    ConfigError: if there is no such run, one is damaged, the steps were not said, or more than them would change.
  """
  found = find_runs(workdir, experiment.name)
  if found.damaged:
    raise ConfigError(found.damaged[0])
  there = [run for run in found.runs if run.variant in experiment.variants]
  missing = [] if any_seed else [seed for seed in experiment.seeds if seed not in {run.seed for run in there}]
  if not there or missing:
    raise _nothing(f'{experiment.name}{f" with seed {missing[0]}" if missing else ""}', workdir)
  own = {name: made if experiment.name == 'custom' else {} for name, made in experiment.variants.items()}
  steps = {run.variant: run.config.run.steps for run in planned}
  wanted = [run for run in there if any_seed or run.seed in experiment.seeds]
  runs = [_extended(run, steps[run.variant], {**changes, **own[run.variant]}) for run in wanted]
  said = any(STEPS in given for given in (changes, experiment.base, *experiment.variants.values()))
  if not said and all(run.config == before.config for run, before in zip(runs, wanted, strict=True)):
    raise ConfigError(
      f'--extend: say to how many steps, as in --config.run.steps={2 * runs[0].config.run.steps}: the runs of '
      f'{experiment.name} have {runs[0].config.run.steps}'
    )
  return runs


def mark_tuned(runs: Sequence[Run], tuning: Tuning | None) -> list[Run]:
  """The runs with `tuned` as it was; one without a result, which would say so, is told by its learning rate."""
  chosen = tuning.chosen if tuning else {}
  finished = [run for run in runs if (run.directory / RESULT).exists()]
  may_be = not finished or any(run.tuned for run in finished)

  def tuned(run: Run) -> bool:
    optimizer = run.config.optimizer
    return may_be and chosen.get(run.variant) == (optimizer.learning_rate, optimizer.warmup_steps)

  return [run if run in finished else dataclasses.replace(run, tuned=tuned(run)) for run in runs]


def _extended(run: Run, steps: int, changes: Changes) -> Run:
  stored = run.config.to_flat()
  for path in changed_settings(changes):
    if stored[path] != changes[path]:
      raise ConfigError(
        f'{run.directory} has {path}={stored[path]}, and {changes[path]} is asked for: --extend changes nothing but '
        f'the steps; leave --config.{path} out'
      )
  if steps < run.config.run.steps:
    raise ConfigError(
      f'{run.directory} holds a run of {run.config.run.steps} steps, more than the requested {steps}: start one of as '
      'few in another --workdir'
    )
  decides = identity(run.config)
  try:
    config = run.config.replace({**{path: new for path, new in changes.items() if path not in decides}, STEPS: steps})
  except ConfigError as error:
    raise ConfigError(f'{run.label}: {error}') from None
  return dataclasses.replace(run, config=config)


def _nothing(what: str, workdir: Path) -> ConfigError:
  there = describe_runs(workdir)
  held = f'there are {there}: name one with --experiment or --name' if there else f'{workdir} holds none'
  return ConfigError(f'--extend: there is nothing to extend, since there is no run of {what}; {held}')
