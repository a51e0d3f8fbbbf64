"""What makes a run the run it is: the fields of its config that decide its numbers, and where two runs differ."""

from collections.abc import Mapping
from typing import Any

from training.config import Config

# A run is what it computes. Sections, and fields of `run`, that only decide what is looked at do not belong to it.
IDENTITY_SECTIONS = ('model', 'data', 'optimizer')
IDENTITY_FIELDS = ('run.steps', 'run.batch_size', 'run.init_seed', 'run.init_from', 'run.on_nonfinite')


def decides(path: str) -> bool:
  """Whether a config field decides a run's numbers."""
  return path.partition('.')[0] in IDENTITY_SECTIONS or path in IDENTITY_FIELDS


def identity_of(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of a flat config that decide a run's numbers, by path."""
  return {path: value for path, value in flat.items() if decides(path)}


def identity(config: Config) -> dict[str, Any]:
  """The same of a config."""
  return identity_of(config.to_flat())


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, str]:
  """What differs between two runs, by path: 'model.num_layers is 12 there, 6 here'; None: not there, or not here.

  A config field that `stored` lacks did not exist when it was written, and counts as its default.
  """
  defaults = Config().to_flat()
  paths = [*wanted, *(path for path in stored if decides(path) and path not in wanted)]
  there = {path: stored.get(path, defaults.get(path)) for path in paths}
  return {
    path: f'{path} is {there[path]!r} there, {wanted.get(path)!r} here'
    for path in paths
    if there[path] != wanted.get(path)
  }
