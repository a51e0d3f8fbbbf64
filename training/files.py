"""The one way to write a file that is read again: whole, or not at all."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from model.config import ConfigError

UNFINISHED = '.unfinished'  # ends the name of a file until it is whole


class SaveFailed(Exception):  # noqa: N818 - what has happened
  """Something could not be written, on a full disk as a rule; what was saved before is whole."""

  def __init__(self, what: object, error: Exception):
    reason = (
      error.strerror
      if isinstance(error, OSError) and error.strerror
      else str(error).partition('\n')[0].rpartition(': ')[2]
    )
    super().__init__(
      f'{what} could not be written ({reason}): what was saved before is whole, and once there is room the same '
      'command goes on from it'
    )


def write_atomically(path: Path, *parts) -> Path:
  """Writes a file whole or not at all, however many processes do so at once.

  Args:
    path: where; its folder is made.
    *parts: text, bytes, or arrays of them, one after the other.

  Returns:
    The path.

  Raises:
    OSError: if it cannot be written; nothing is left behind, and a file that was there stays as it was.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.', suffix=UNFINISHED)
  try:
    with open(descriptor, 'wb') as file:
      for part in parts:
        file.write(part.encode() if isinstance(part, str) else part)
      file.flush()
      os.fsync(file.fileno())  # or a power failure after the replacement may leave an empty file
    os.chmod(temporary, 0o644)  # mkstemp keeps a file to its owner; results are for the group, too
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(FileNotFoundError):
      os.unlink(temporary)
    raise
  return path


def clear_unfinished(folder: Path) -> None:
  """Deletes what writers that were killed have left in a folder; for one who holds its lock."""
  for path in folder.glob(f'.*{UNFINISHED}'):
    path.unlink()


def write_json(path: Path, value: dict[str, Any]) -> Path:
  """Writes an object as JSON; a number that is not finite is refused."""
  return write_atomically(path, json.dumps(value, indent=2, allow_nan=False), '\n')


def read_json(path: Path) -> dict[str, Any] | None:
  """The object in a JSON file; None if there is no such file.

  Raises:
    ConfigError: if it holds anything else.
  """
  try:
    value = json.loads(path.read_text('utf8'))
  except (FileNotFoundError, NotADirectoryError):
    return None
  except ValueError as error:
    raise ConfigError(f'{path} is damaged ({error}): delete {path.parent} and run again') from None
  except OSError as error:
    raise ConfigError(f'{path} cannot be read: {error.strerror}') from None
  if not isinstance(value, dict):
    raise ConfigError(f'{path} is damaged (not a JSON object): delete {path.parent} and run again')
  return value
