"""Validates the EXPERIMENT and the REPRODUCTION that a file declares, field by field."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.core.experiment import Experiment, Grid
from lab.core.names import check_variant_name
from lab.core.reproduction import Expected, Reproduction
from training.config import ConfigError, known_paths
from training.known_names import check_names


def check_experiment(value: Any) -> None:
  """Raises ConfigError, naming the field, if a value is not a valid Experiment."""
  if not isinstance(value, Experiment):
    raise ConfigError(f'EXPERIMENT must be an Experiment(question=..., variants=...), not {_describe(value)}')
  _check_text(value.question, 'EXPERIMENT.question')
  _check_mapping(value.variants, 'EXPERIMENT.variants')
  if not value.variants:
    raise ConfigError('EXPERIMENT.variants is empty: the first variant is the baseline')
  for name, changes in value.variants.items():
    _check_text(name, 'a name in EXPERIMENT.variants')
    check_variant_name(name)
    _check_changes(changes, f'EXPERIMENT.variants[{name!r}]')
  _check_changes(value.base, 'EXPERIMENT.base')
  _check_numbers(value.seeds, 'EXPERIMENT.seeds', _is_seed, 'non-negative integers')
  _check_text(value.config, 'EXPERIMENT.config')
  if not isinstance(value.grid, Grid):
    raise ConfigError(f'EXPERIMENT.grid must be a Grid(learning_rates=...), not {_describe(value.grid)}')
  _check_numbers(value.grid.learning_rates, 'EXPERIMENT.grid.learning_rates', _is_positive, 'positive numbers')
  _check_numbers(value.grid.seeds, 'EXPERIMENT.grid.seeds', _is_seed, 'non-negative integers')


def check_reproduction(value: Any) -> None:
  """Raises ConfigError, naming the field, if a value is not a valid Reproduction."""
  if not isinstance(value, Reproduction):
    raise ConfigError(f'REPRODUCTION must be a Reproduction(claim=..., ...), not {_describe(value)}')
  for field in ('claim', 'source', 'caption'):
    _check_text(getattr(value, field), f'REPRODUCTION.{field}')
  for field in ('seconds', 'drift'):
    if not _is_positive(getattr(value, field)):
      raise ConfigError(f'REPRODUCTION.{field}={getattr(value, field)!r}: must be a positive number')
  if not isinstance(value.expected, Sequence) or not all(isinstance(expected, Expected) for expected in value.expected):
    raise ConfigError('REPRODUCTION.expected must be a tuple of exactly(...), between(...) or similar')
  for field in ('settings', 'full'):
    _check_mapping(getattr(value, field), f'REPRODUCTION.{field}')
  if not callable(value.draw):
    raise ConfigError(f'REPRODUCTION.draw must be a function, not {_describe(value.draw)}')
  if callable(value.measure) == callable(value.read):
    raise ConfigError('REPRODUCTION must have exactly one of the functions measure and read')


def _check_changes(changes: Any, name: str) -> None:
  _check_mapping(changes, name)
  for path in changes:
    _check_text(path, f'a key of {name}')
  check_names(changes, known_paths(), f'config key in {name}')


def _check_mapping(value: Any, name: str) -> None:
  if not isinstance(value, Mapping):
    raise ConfigError(f'{name} must be a dict, not {_describe(value)}')


def _check_text(value: Any, name: str) -> None:
  if not isinstance(value, str) or not value.strip():
    raise ConfigError(f'{name} must be a non-empty string, not {_describe(value)}')


def _check_numbers(values: Any, name: str, is_valid: Callable[[Any], bool], description: str) -> None:
  if not isinstance(values, (tuple, list)) or not values or not all(map(is_valid, values)):
    raise ConfigError(f'{name}={values!r}: must be a tuple of one or more {description}')
  if len(set(values)) < len(values):
    raise ConfigError(f'{name}={values!r} contains duplicates')


def _is_seed(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _is_positive(value: Any) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _describe(value: Any) -> str:
  return f'{value!r}' if isinstance(value, (str, int, float, bool, type(None))) else f'a {type(value).__name__}'
