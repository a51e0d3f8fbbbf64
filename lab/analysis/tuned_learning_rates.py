"""Runs an experiment at tuned learning rates: finds its tuning, checks that it applies, and plans the runs."""

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
NOT_FIXED = (LEARNING_RATE, *SEED_FIELDS)  # differ between the runs of a tuning


def find_tuning(experiment: str, workdir: Path) -> Tuning | None:
  """The tuning of an experiment: the one in the work directory, otherwise the committed one, otherwise None."""
  check_paths_free(workdir / experiment)
  return tuning_results.read_tuning(workdir / experiment / 'tuned.csv') or tuning_results.read_tuning(
    COMMITTED / f'{experiment}.csv'
  )


def tuning_settings(experiment: Experiment, scale: Config, changes: Changes) -> dict[str, Any]:
  """The settings that a tuning applies to: the fields that decide a run, except the learning rate and the seeds."""
  fields = identity(scale.replace({**experiment.base, **changes}))
  return {path: value for path, value in fields.items() if path not in NOT_FIXED}


def tuning_differences(found: Tuning, experiment: Experiment, scale: Config, changes: Changes) -> str:
  """Describes how the settings of a tuning differ from those of the experiment; empty if the tuning applies."""
  then = identity(Config.from_flat(found.about['settings']))  # fields added since then had their default
  differing = differences(then, tuning_settings(experiment, scale, changes) | {path: then[path] for path in NOT_FIXED})
  declared = found.about['variants']
  others = [name for name, own in experiment.variants.items() if name in declared and declared[name] != dict(own)]
  ideas, recorded = recorded_ideas(experiment, scale, changes), found.about.get('ideas') or {}
  changed = [name for name in experiment.variants if name in declared and ideas.get(name) != recorded.get(name)]
  return '; '.join(
    [
      *differing.values(),
      *(f'{name} was tuned with other changes' for name in others),
      *(f'{name} was tuned with another text of its experiment file' for name in changed if name not in others),
    ]
  )


def recorded_ideas(experiment: Experiment, scale: Config, changes: Changes) -> dict[str, str]:
  """The checksum of the file that registered a part of the model, of each variant whose model is not built in."""
  models = {
    name: scale.replace({**experiment.base, **changes, **own}).model for name, own in experiment.variants.items()
  }
  return {name: model.idea for name, model in models.items() if model.idea}


def plan_at_tuned_rates(
  experiment: Experiment, scale: Config, changes: Changes, workdir: Path, found: Tuning
) -> list[Run]:
  """The runs of an experiment, each variant at the learning rate chosen for it.

  Raises:
    ConfigError: if a variant was not tuned, or the tuning used one of the experiment's seeds.
  """
  check_seeds_disjoint(experiment, found.seeds)
  missing = [name for name in experiment.variants if name not in found.chosen]
  if missing:
    raise ConfigError(
      f'{found.path} has no learning rate for {missing[0]}: tune it with --tune, or run all variants at one rate, '
      'as in --shared_learning_rate=4e-3'
    )
  at_rates = {
    name: {**own, LEARNING_RATE: found.chosen[name][0], WARMUP: found.chosen[name][1]}
    for name, own in experiment.variants.items()
  }
  runs = plan.plan_runs(dataclasses.replace(experiment, variants=at_rates), scale, changes, workdir)
  return [dataclasses.replace(run, tuned=True) for run in runs]


def check_seeds_disjoint(experiment: Experiment, seeds: Sequence[int]) -> None:
  """Raises ConfigError if one of the tuning seeds is also a seed of the experiment's reported runs."""
  shared = sorted(set(experiment.seeds) & set(seeds))
  if shared:
    raise ConfigError(
      f'--seeds={shared[0]}: the learning rates of {experiment.name} are tuned on seed {shared[0]}, '
      'so it cannot be used to evaluate them: omit it'
    )
