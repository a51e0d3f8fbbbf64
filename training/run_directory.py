"""The directory of a run: whose it is, and what lies in it.

config.json  metrics.jsonl  checkpoints/  tensorboard/  result.json
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.config import Config, ConfigError
from training.files import read_json, write_json

# A run is what it computes. Sections, and fields of `run`, that only decide what is looked at do not belong to it.
IDENTITY_SECTIONS = ('model', 'data', 'optimizer')
IDENTITY_FIELDS = ('run.steps', 'run.batch_size', 'run.init_seed', 'run.on_nonfinite')


def identity(config: Config) -> dict[str, Any]:
  """The fields that decide a run's numbers, by path."""
  flat = config.to_flat()
  return {
    path: value for path, value in flat.items() if path.split('.')[0] in IDENTITY_SECTIONS or path in IDENTITY_FIELDS
  }


def check(directory: Path, config: Config) -> None:
  """Checks that a run of this config may use the directory; writes nothing.

  Raises:
    ConfigError: if another run's config.json is there (naming what differs), or something else is in the way.
  """
  for place in (directory, *directory.parents):
    if place.exists() and not place.is_dir():
      raise ConfigError(f'{place} is a file, and a folder is needed there: move it, or choose another --workdir')
  nearest = next(place for place in (directory, *directory.absolute().parents) if place.exists())
  if not os.access(nearest, os.W_OK | os.X_OK):
    raise ConfigError(f'{nearest} cannot be written to: choose another --workdir')
  stored = read_json(directory / 'config.json')
  if stored is None:
    return
  wanted = identity(config)
  differing = [path for path, value in wanted.items() if stored.get(path) != value]
  if differing:
    shown = '; '.join(f'{path} is {stored.get(path)!r} there, {wanted[path]!r} here' for path in differing[:5])
    more = f'; and {len(differing) - 5} more' if len(differing) > 5 else ''
    elsewhere = f'{workdir_of(directory)}_2'
    raise ConfigError(f'{directory} holds another run ({shown}{more}): start this one with --workdir={elsewhere}')


def check_text(directory: Path, data_checksum: str) -> None:
  """Raises ConfigError if the run in the directory was begun on other data than these."""
  begun = read_json(directory / 'environment.json')
  if begun and begun['data_checksum'] != data_checksum:
    raise ConfigError(f'{directory} was begun on another text, which has changed since: choose another --workdir')


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
  """Keeps a second process off the run while this one trains it; a process that dies lets go.

  Raises:
    ConfigError: if another process has it.
  """
  with (directory / 'lock').open('w') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise ConfigError(f'{directory} is being trained by another process: wait for it') from None
    yield


def prepare(directory: Path, config: Config) -> None:
  """Makes the directory and writes its config.json, after `check`."""
  check(directory, config)
  write_json(directory / 'config.json', config.to_flat())


def workdir_of(directory: Path) -> Path:
  """<workdir> of <workdir>/<experiment>/<variant>/seed_<k>."""
  return directory.parents[2] if len(directory.parents) > 2 else directory


def read_result(directory: Path) -> dict[str, Any] | None:
  """What the finished run in this directory gave, or None if it has not ended."""
  return read_json(directory / 'result.json')
