"""Atomic writes of files, and reading JSON files that may be damaged."""

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model.config import ConfigError

UNFINISHED = '.unfinished'  # suffix of a file that is being written
CHECKSUM = 'sha256'  # the key of the checksum in a sealed JSON object
DELETE_REMEDY = 'delete only this file, and run the same command again'


class Damaged(ConfigError):  # noqa: N818 - a state of a file
  """A file or an array differs from what was written; the message names it and the remedy.

  Attributes:
    what: the message without the remedy.
  """

  def __init__(self, what: str, remedy: str = ''):
    super().__init__(f'{what}: {remedy}' if remedy else what)
    self.what = what


class SaveFailed(Exception):  # noqa: N818 - an event
  """A file could not be written; earlier saves are intact. The message names the cause and the remedy."""

  def __init__(self, what: object, error: Exception):
    super().__init__(f'{what} could not be written ({_reason(error)}): earlier saves are intact; {_remedy(error)}')


_REMEDIES = {
  errno.ENOSPC: 'once there is space on the disk, the same command resumes the run',
  errno.EDQUOT: 'once your disk quota allows it, the same command resumes the run',
  errno.EROFS: 'the file system is read-only: make it writable, or choose another --workdir',
  errno.EACCES: 'give this user write permission there, or choose another --workdir',
  errno.EPERM: 'give this user write permission there, or choose another --workdir',
  errno.EAGAIN: 'a limit on processes or threads was reached (ulimit -u): raise it, or use fewer --workers; the same '
  'command resumes the run',
  errno.EMFILE: 'too many open files: raise the limit (ulimit -n), and the same command resumes the run',
  errno.ENFILE: 'too many open files on this machine: close some, and the same command resumes the run',
  errno.ENOMEM: 'out of memory: free some, or use fewer --workers; the same command resumes the run',
  errno.EISDIR: 'there is a folder where a file is needed: move it away, and run the same command again',
  errno.ENOTDIR: 'there is a file where a folder is needed: move it away, and run the same command again',
  errno.EEXIST: 'there is a file or a dangling link where a folder is needed: move it away, and run the same command '
  'again',
  errno.ENOENT: 'its folder was deleted, or a link is dangling: restore it, and run the same command again',
  errno.ELOOP: 'a link points to itself: remove it, and run the same command again',
  errno.ENAMETOOLONG: 'the path is too long: choose a shorter --workdir or --name',
  errno.EFBIG: 'the file size limit was reached (ulimit -f): raise it, and the same command resumes the run',
  errno.ENOSYS: 'the file system does not support this: choose a --workdir on another one',
  errno.ENOLCK: 'the file system does not support this: choose a --workdir on another one',
  errno.EOPNOTSUPP: 'the file system does not support this: choose a --workdir on another one',
  errno.EIO: 'the disk reported an error: check it, or choose another --workdir',
  errno.ESTALE: 'the network file system has lost the file: mount it again, and the same command resumes the run',
}


def _reason(error: Exception) -> str:
  """The system's message, also if another error wraps it."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  return str(error).partition('\n')[0].rpartition(': ')[2] or type(error).__name__


def _remedy(error: BaseException | None) -> str:
  """The remedy for the error number. Orbax and others wrap the system's error, or keep only its message."""
  cause: BaseException | None = error
  while cause is not None:
    if isinstance(cause, OSError) and cause.errno in _REMEDIES:
      return _REMEDIES[cause.errno]
    cause = cause.__cause__ or cause.__context__
  if "can't start new thread" in str(error):  # Python gives no error number for it
    return _REMEDIES[errno.EAGAIN]
  by_message = [remedy for number, remedy in _REMEDIES.items() if os.strerror(number) in str(error)]
  return by_message[0] if by_message else 'fix the cause, and the same command resumes the run'


def write_atomically(path: Path, *parts) -> Path:
  """Writes a file completely or not at all; several processes may write it at the same time.

  Args:
    path: the file's path; its folder is created.
    *parts: text, bytes, or arrays of bytes, to be concatenated.

  Returns:
    The path.

  Raises:
    OSError: if it cannot be written; then nothing is left behind, and an existing file stays unchanged.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_name(f'.{path.name}.{secrets.token_hex(4)}{UNFINISHED}')
  try:
    with temporary.open('xb') as file:  # not tempfile, which would make the file private to this user
      for part in parts:
        file.write(part.encode() if isinstance(part, str) else part)
      file.flush()
      os.fsync(file.fileno())  # otherwise a power failure after os.replace may leave an empty file
    os.replace(temporary, path)
  except BaseException as error:
    with contextlib.suppress(OSError):  # it may not exist
      os.unlink(temporary)
    if isinstance(error, OSError) and error.filename == str(temporary):
      error.filename = str(path)  # the name that the user knows
    raise
  return path


def clear_unfinished(folder: Path) -> None:
  """Deletes the unfinished files of killed processes in a folder; call it while holding the folder's lock."""
  for path in folder.glob(f'.*{UNFINISHED}'):
    path.unlink()


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
  """Writes an object as JSON; raises ValueError for a number that is not finite."""
  return write_atomically(path, json.dumps(value, indent=2, allow_nan=False), '\n')


def write_sealed(path: Path, value: Mapping[str, Any]) -> Path:
  """Writes an object as JSON with its checksum, which `read_json` verifies."""
  return write_json(path, {**value, CHECKSUM: checksum_of(value)})


def checksum_of(value: Mapping[str, Any]) -> str:
  """The sha256 of an object's canonical JSON: sorted keys, default separators of json.dumps."""
  return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _never(value: Mapping[str, Any]) -> bool:
  return False


def read_json(
  path: Path, remedy: str = DELETE_REMEDY, sealed: Callable[[Mapping[str, Any]], bool] = _never
) -> dict[str, Any] | None:
  """The object in a JSON file; None if there is no such file.

  Args:
    path: the file's path.
    remedy: what the user can do if the file is damaged; ends the message.
    sealed: whether the object must have a checksum. An existing checksum is always verified.

  Returns:
    The object without its checksum.

  Raises:
    Damaged: if it is not JSON or not an object, has a duplicate key or a number that is not finite, or does not match
      its checksum.
    ConfigError: if the file cannot be read.
  """
  try:
    content = path.read_bytes()
  except (FileNotFoundError, NotADirectoryError):
    return None
  except OSError as error:
    raise ConfigError(f'{path} cannot be read: {error.strerror}') from None
  try:
    value = parse_json(content)
    if CHECKSUM not in value and sealed(value):
      raise ValueError('its checksum is missing')
  except ValueError as error:
    raise Damaged(f'{path} is damaged ({error})', remedy) from None
  return {name: one for name, one in value.items() if name != CHECKSUM}


def parse_json(content: bytes | str) -> dict[str, Any]:
  """The object in a JSON text; its checksum, if it has one, is verified.

  Raises:
    ValueError: if the text is damaged; see `read_json`.
  """
  try:
    text = content.decode('utf8') if isinstance(content, bytes) else content
    value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite)
    if not isinstance(value, dict):
      raise ValueError('not a JSON object')
    rest = {name: one for name, one in value.items() if name != CHECKSUM}
    if CHECKSUM in value and value[CHECKSUM] != checksum_of(rest):
      raise ValueError('its content does not match its checksum')
  except RecursionError:
    raise ValueError('nested too deeply') from None
  return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  value = dict(pairs)
  if len(value) < len(pairs):
    names = [name for name, _ in pairs]
    raise ValueError(f'{next(name for name in names if names.count(name) > 1)!r} occurs twice')
  return value


def _refuse_constant(name: str) -> float:
  raise ValueError(f'{name} is not JSON')


def _finite(text: str) -> float:
  number = float(text)
  if not math.isfinite(number):
    raise ValueError(f'the number {text[:40]} is too large')
  return number
