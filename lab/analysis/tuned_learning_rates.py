"""The rates that a tuning chose, given to an experiment: whether they hold for it, and its runs at them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.analysis import tuning_results
from lab.analysis.tuning_results import Tuning
from lab.core import plan
from lab.core.experiment import Changes, Experiment
from lab.core.run import Run
from training.code_version import PROJECT
from training.config import Config, ConfigError
from training.identity import SEED_FIELDS, differences, identity
from training.run_files.run_directory import check_paths_free

COMMITTED = PROJECT / 'experiments' / 'tuned'
LEARNING_RATE, WARMUP = 'optimizer.learning_rate', 'optimizer.warmup_steps'
FREE = (LEARNING_RATE, *SEED_FIELDS)  # what the settings of a tuning do not hold


def find_tuning(experiment: str, workdir: Path) -> Tuning | None:
  """The tuning of an experiment: its own in the workdir, else the one that comes with the project, else None."""
  check_paths_free(workdir / experiment)
  return tuning_results.read_tuning(workdir / experiment / 'tuned.csv') or tuning_results.read_tuning(
    COMMITTED / f'{experiment}.csv'
  )


def tuning_settings(experiment: Experiment, scale: Config, changes: Changes) -> dict[str, Any]:
  """What a tuning holds for, beside the variants: the fields that decide a run, but for the rate and the seeds."""
  fields = identity(scale.replace({**experiment.base, **changes}))
  return {path: value for path, value in fields.items() if path not in FREE}


def tuning_differences(found: Tuning, experiment: Experiment, scale: Config, changes: Changes) -> str:
  """In what the tuning was made otherwise than the experiment is to be run; empty where it holds."""
  then = identity(Config.from_flat(found.about['settings']))  # a field that is new since had its default
  differing = differences(then, tuning_settings(experiment, scale, changes) | {path: then[path] for path in FREE})
  declared = found.about['variants']
  others = [name for name, own in experiment.variants.items() if name in declared and declared[name] != dict(own)]
  return '; '.join([*differing.values(), *(f'{name} was another variant there' for name in others)])


def plan_at_tuned_rates(
  experiment: Experiment, scale: Config, changes: Changes, workdir: Path, found: Tuning
) -> list[Run]:
  """The runs of an experiment, each variant at the rate chosen for it.

  Raises:
    ConfigError: if none was chosen for a variant, or a seed is one that the choice was made on.
  """
  check_seeds_disjoint(experiment, found.seeds)
  missing = [name for name in experiment.variants if name not in found.chosen]
  if missing:
    raise ConfigError(
      f'{found.path} has no rate for {missing[0]}: tune it with --tune, or give all variants one rate, '
      'as in --shared_learning_rate=4e-3'
    )
  at_rates = {
    name: {**own, LEARNING_RATE: found.chosen[name][0], WARMUP: found.chosen[name][1]}
    for name, own in experiment.variants.items()
  }
  runs = plan.plan_runs(dataclasses.replace(experiment, variants=at_rates), scale, changes, workdir)
  return [dataclasses.replace(run, tuned=True) for run in runs]


def check_seeds_disjoint(experiment: Experiment, seeds: Sequence[int]) -> None:
  """Raises ConfigError if the experiment is to be reported on one of the seeds that choose its rates."""
  both = sorted(set(experiment.seeds) & set(seeds))
  if both:
    raise ConfigError(
      f'--seeds={both[0]}: the learning rates of {experiment.name} are chosen on seed {both[0]}, '
      'so that it says nothing of them: leave it out'
    )
