"""The identity of a run: the config fields that determine its numbers, and how two runs differ in them."""

from collections.abc import Mapping
from typing import Any

from training.config import Config, with_present_names

# Fields that only determine what is logged, inspected or saved do not belong to the identity.
IDENTITY_SECTIONS = ('model', 'data', 'optimizer')
IDENTITY_FIELDS = ('run.steps', 'run.batch_size', 'run.init_seed', 'run.init_from', 'run.on_nonfinite')
SEED_FIELDS = ('run.init_seed', 'data.seed')  # those that follow the seed of a run


def decides(path: str) -> bool:
  """Whether a config field determines a run's numbers."""
  return path.partition('.')[0] in IDENTITY_SECTIONS or path in IDENTITY_FIELDS


def identity_of(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of a flat config that determine the numbers of a run, by path."""
  return {path: value for path, value in flat.items() if decides(path)}


def identity(config: Config) -> dict[str, Any]:
  """The fields of a config that determine the numbers of a run, by path."""
  return identity_of(config.to_flat())


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, str]:
  """The differences between two runs, by path: 'model.num_layers is 12 there, 6 here'; a missing field is None.

  A config field that `stored` lacks did not exist yet when it was written: its default is compared.
  """
  stored, defaults = with_present_names(stored), Config().to_flat()
  paths = [*wanted, *(path for path in stored if decides(path) and path not in wanted)]
  before = {path: stored.get(path, defaults.get(path)) for path in paths}
  return {
    path: f'{path} is {before[path]!r} there, {wanted.get(path)!r} here'
    for path in paths
    if before[path] != wanted.get(path)
  }
