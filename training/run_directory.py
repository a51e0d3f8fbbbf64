"""The directory of a run: whose it is, and what lies in it.

  config.json  metrics.jsonl  checkpoints/  tensorboard/  result.json
"""

import json
from pathlib import Path
from typing import Any

from training.config import Config, ConfigError
from training.files import write_atomically

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
  stored = read_json(directory / 'config.json')
  if stored is None:
    return
  wanted = identity(config)
  differing = [path for path, value in wanted.items() if stored.get(path) != value]
  if differing:
    shown = ', '.join(f'{path} ({stored.get(path)!r} there, {wanted[path]!r} now)' for path in differing[:5])
    more = f' and {len(differing) - 5} more' if len(differing) > 5 else ''
    raise ConfigError(
      f'{directory} holds another run: {shown}{more} differ; start this one elsewhere, with --workdir={workdir_of(directory)}_2'
    )


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


def read_json(path: Path) -> dict[str, Any] | None:
  """The object in a JSON file; None if there is no such file.

  Raises:
    ConfigError: if it holds anything else.
  """
  try:
    value = json.loads(path.read_text('utf8'))
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
    raise ConfigError(f'{path} cannot be read ({error}): delete {path.parent} to run it again') from None
  if not isinstance(value, dict):
    raise ConfigError(f'{path} does not hold a JSON object: delete {path.parent} to run it again')
  return value


def write_json(path: Path, value: dict[str, Any]) -> None:
  """Writes an object as JSON, whole or not at all; a number that is not finite is refused."""
  write_atomically(path, (json.dumps(value, indent=2, allow_nan=False) + '\n').encode())
