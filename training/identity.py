"""The identity of a run: the config fields that determine its numbers, and how two runs differ in them."""

from collections.abc import Mapping
from typing import Any

from training.config import IDEA, IDEA_FILE, Config, with_present_names
from training.ideas import describe_idea

# Fields that only determine what is logged, inspected or saved do not belong to the identity.
IDENTITY_SECTIONS = ('model', 'data', 'optimizer')
IDENTITY_FIELDS = ('run.steps', 'run.batch_size', 'run.init_seed', 'run.init_from', 'run.on_nonfinite')
SEED_FIELDS = ('run.init_seed', 'data.seed')  # those that follow the seed of a run


def decides(path: str) -> bool:
  """Whether a config field determines a run's numbers."""
  return (path.partition('.')[0] in IDENTITY_SECTIONS or path in IDENTITY_FIELDS) and path != IDEA_FILE


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
    path: _describe_difference(path, before[path], wanted.get(path))
    for path in paths
    if before[path] != wanted.get(path)
  }


def _describe_difference(path: str, before: Any, wanted: Any) -> str:
  if path == IDEA and before and wanted:
    return f'the file {describe_idea(before)} there has changed to {describe_idea(wanted)} here'
  return f'{path} is {before!r} there, {wanted!r} here'
