"""Plans the runs of an experiment, each with its complete config and its directory."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.core.experiment import Changes, Experiment
from lab.core.names import check_experiment_name, check_variant_name, name_from_changes
from lab.core.registry import experiment_names
from lab.core.run import Run
from training.config import Config, ConfigError, known_paths
from training.identity import SEED_FIELDS
from training.known_names import check_names
from training.run_files import locks, run_directory
from training.run_files.stored_run import intact_result


def plan_runs(experiment: Experiment, scale: Config, flags: Changes, workdir: Path) -> list[Run]:
  """The runs of an experiment: for each seed, every variant.

  If several sources set the same field, the last one in this order wins: the scale file, the experiment's base, the
  seed, the flags, the variant.

  Args:
    experiment: the experiment, with only the variants and seeds to run.
    scale: the config of the scale file.
    flags: the changes from the command line, by config path.
    workdir: the work directory.

  Raises:
    ConfigError: if a config or a name is invalid, or two runs have the same config.
  """
  check_experiment_name(experiment.name)
  for name in experiment.variants:
    check_variant_name(name)
    if workdir.absolute().name == 'tuning' and run_directory.TUNING_POINT.fullmatch(name):
      raise ConfigError(
        f'--workdir={workdir}: a variant named {name} would be mistaken for a tuning run there: rename it'
      )
  runs = []
  for seed, (variant, changes) in itertools.product(experiment.seeds, experiment.variants.items()):
    seeds = dict.fromkeys(SEED_FIELDS, seed)
    try:
      config = scale.replace({**experiment.base, **seeds, **flags, **changes})
    except ConfigError as error:
      raise ConfigError(f'{experiment.name}/{variant}: {error}') from None
    if config.model.idea:
      from model.part_checks import check_parts  # imports the model, which --list and most requests need later or never

      check_parts(config.model)
    directory = workdir / experiment.name / variant / f'seed_{seed}'
    runs.append(Run(experiment.name, variant, seed, config, directory))
  _check_distinct(runs)
  return runs


def _check_distinct(runs: Sequence[Run]) -> None:
  """Raises ConfigError if two runs have the same config: a confidence interval over them would be too narrow."""
  first_with: dict[Config, Run] = {}
  for run in runs:
    other = first_with.setdefault(run.config, run)
    if other is not run:
      raise ConfigError(
        f'{run.label} has the same config as {other.label}: '
        'a flag overrides the field in which they differ, or a variant changes nothing'
      )


def check_directories(runs: Sequence[Run], extend: bool = False, joins: bool = False) -> None:
  """Raises ConfigError if a run cannot use its directory. Nothing is written.

  Args:
    runs: the planned runs.
    extend: see `training.run_files.run_directory.check`.
    joins: whether this process trains the run together with other processes, which may have locked its directory.
  """
  for run in runs:
    run_directory.check(run.directory, run.config, extend, reads=True)
    check_tuned_label(run)
    if run_directory.is_finished(run.directory, run.config):
      continue
    run_directory.check_writable(run.directory)
    if not joins:
      locks.check_free(run.directory)


def check_tuned_label(run: Run) -> None:
  """Raises ConfigError if the stored result has a tuned learning rate and this run does not, or vice versa."""
  result = intact_result(run.directory)
  if result is not None and result.get('learning_rate_tuned', False) != run.tuned:
    stored, planned = ('not tuned', 'tuned') if run.tuned else ('tuned', 'not tuned')
    raise ConfigError(
      f'{run.directory} holds a run whose learning rate was {stored}, but that of this run is {planned}: '
      f'use --workdir={run_directory.workdir_of(run.directory)}_2 for this run'
    )


def select(experiment: Experiment, variants: Sequence[str], seeds: Sequence[int]) -> Experiment:
  """The experiment restricted to these variants and seeds; an empty list means all of them.

  Raises:
    ConfigError: if a variant is unknown, with the most similar name.
  """
  check_names(variants, experiment.variants, f'variant of {experiment.name}')
  selected = {name: changes for name, changes in experiment.variants.items() if not variants or name in variants}
  return dataclasses.replace(experiment, variants=selected, seeds=tuple(dict.fromkeys(seeds)) or experiment.seeds)


def custom_experiment(changes: Changes, name: str) -> Experiment:
  """The experiment `custom`, whose only variant is named by --name or after its changes."""
  name = name or name_from_changes(changes)
  check_variant_name(name)
  return Experiment(
    name='custom', question='How does this variant perform?', variants={name: dict(changes)}, seeds=(0,)
  )


def sweep_experiment(sweep: str, flags: Changes, name: str) -> Experiment:
  """The experiment of --sweep, as in --sweep='model.connection=pre,post;optimizer.learning_rate=1e-3,3e-3'.

  Its variants are all combinations of the values; the first values of all keys form the baseline.

  Raises:
    ConfigError: if the sweep cannot be parsed, or has an unknown key.
  """
  axes = [_parse_axis(axis) for axis in sweep.split(';') if axis.strip()]
  if not axes:
    raise ConfigError("--sweep is empty: write it as in --sweep='model.connection=pre,post'")
  check_names([path for path, _ in axes], known_paths(), 'config key in --sweep')
  overlap = {path for path, _ in axes} & set(flags)
  if overlap:
    raise ConfigError(f'{sorted(overlap)[0]} is set both by --sweep and by another flag: remove one of them')
  varied = {path for path, values in axes if len(values) > 1}
  variants = {}
  for values in itertools.product(*(values for _, values in axes)):
    changes = dict(zip((path for path, _ in axes), values, strict=True))
    named = {path: value for path, value in changes.items() if path in varied} or changes
    variant = name_from_changes(named)
    if variant in variants:
      raise ConfigError(f'--sweep contains {variant} twice')
    variants[variant] = changes
  name = name or 'custom'
  check_experiment_name(name)
  if name in experiment_names():
    raise ConfigError(f'--name={name} is the name of an experiment: choose another name')
  return Experiment(name=name, question=f'How do the settings in the grid {sweep} compare?', variants=variants)


def _parse_axis(axis: str) -> tuple[str, list[Any]]:
  path, separator, values = (part.strip() for part in axis.partition('='))
  if not separator or not values:
    raise ConfigError(f"--sweep: cannot parse {axis!r}; write key=value,value, as in 'model.connection=pre,post'")
  return path, [parse_value(path, value.strip()) for value in values.split(',')]


def parse_value(path: str, text: str) -> Any:
  """Parses the value of a config field as the type of the field's default.

  Raises:
    ConfigError: if the text cannot be parsed as that type.
  """
  check_names([path], known_paths(), 'config key')
  kind = type(Config().to_flat()[path])
  if kind is bool:
    if text.lower() not in ('true', 'false'):
      raise ConfigError(f'{path}={text}: must be true or false')
    return text.lower() == 'true'
  try:
    return kind(text)
  except ValueError:
    raise ConfigError(f'{path}={text}: must be {"a whole number" if kind is int else "a number"}') from None
