"""The one way to write a file that is read again: whole, or not at all; and to read JSON that may have been damaged."""

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

UNFINISHED = '.unfinished'  # ends the name of a file until it is whole
CHECKSUM = 'sha256'  # the key, in a sealed JSON object, of the checksum of all the others
SMALLEST_REMEDY = 'delete this file alone, and run the same command again'


class Damaged(ConfigError):  # noqa: N818 - what the message says of a file
  """What was written is not what is there; the message names the file, or the array, and what to do.

  Attributes:
    what: the message without what to do.
  """

  def __init__(self, what: str, remedy: str = ''):
    super().__init__(f'{what}: {remedy}' if remedy else what)
    self.what = what


class SaveFailed(Exception):  # noqa: N818 - what has happened
  """Something could not be written; what was saved before is whole. The message names the cause and its remedy."""

  def __init__(self, what: object, error: Exception):
    super().__init__(
      f'{what} could not be written ({_reason(error)}): what was saved before is whole; {_remedy(error)}'
    )


_REMEDIES = {
  errno.ENOSPC: 'once there is space on the disk, the same command resumes from it',
  errno.EDQUOT: 'once your disk quota allows it, the same command resumes from it',
  errno.EROFS: 'the file system is read-only: make it writable, or choose another --workdir',
  errno.EACCES: 'give this user write permission there, or choose another --workdir',
  errno.EPERM: 'give this user write permission there, or choose another --workdir',
  errno.EAGAIN: 'a limit on processes or threads was reached (ulimit -u): raise it, or use fewer --workers; the same '
  'command resumes from it',
  errno.EMFILE: 'too many open files: raise the limit (ulimit -n), and the same command resumes from it',
  errno.ENFILE: 'too many open files on this machine: close some, and the same command resumes from it',
  errno.ENOMEM: 'memory is short: free some, or use fewer --workers; the same command resumes from it',
  errno.EISDIR: 'a folder is where a file should be: move it away, and run the same command again',
  errno.ENOTDIR: 'a file is where a folder should be: move it away, and run the same command again',
  errno.EEXIST: 'something else is where a folder should be, as a file or a dangling link: move it away, and run the '
  'same command again',
  errno.ENOENT: 'its folder is gone, or a link leads nowhere: restore it, and run the same command again',
  errno.ELOOP: 'a link leads to itself: remove it, and run the same command again',
  errno.ENAMETOOLONG: 'the path is too long: choose a shorter --workdir or --name',
  errno.EFBIG: 'it would be larger than a file may be here (ulimit -f shows the limit): raise it, and the same command '
  'resumes from it',
  errno.ENOSYS: 'the file system does not support this: choose a --workdir on another one',
  errno.ENOLCK: 'the file system does not support this: choose a --workdir on another one',
  errno.EOPNOTSUPP: 'the file system does not support this: choose a --workdir on another one',
  errno.EIO: 'the disk reports an error: check it, or choose another --workdir',
  errno.ESTALE: 'the network file system has lost it: mount it again, and the same command resumes from it',
}


def _reason(error: Exception) -> str:
  """The words of the system, of whatever error it lies behind."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  return str(error).partition('\n')[0].rpartition(': ')[2] or type(error).__name__


def _remedy(error: BaseException | None) -> str:
  """What helps, by the error number; orbax and others wrap the error of the system, or keep its words alone."""
  seen: BaseException | None = error
  while seen is not None:
    if isinstance(seen, OSError) and seen.errno in _REMEDIES:
      return _REMEDIES[seen.errno]
    seen = seen.__cause__ or seen.__context__
  if "can't start new thread" in str(error):  # which Python says without a number
    return _REMEDIES[errno.EAGAIN]
  told = [remedy for number, remedy in _REMEDIES.items() if os.strerror(number) in str(error)]
  return told[0] if told else 'see to that, and the same command resumes from it'


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
  temporary = path.with_name(f'.{path.name}.{secrets.token_hex(4)}{UNFINISHED}')
  try:
    with temporary.open('xb') as file:  # with the permissions of any new file: those that the umask leaves
      for part in parts:
        file.write(part.encode() if isinstance(part, str) else part)
      file.flush()
      os.fsync(file.fileno())  # or a power failure after the replacement may leave an empty file
    os.replace(temporary, path)
  except BaseException as error:
    with contextlib.suppress(OSError):  # it may never have been there
      os.unlink(temporary)
    if isinstance(error, OSError) and error.filename == str(temporary):
      error.filename = str(path)  # whoever is told of it knows this name
    raise
  return path


def clear_unfinished(folder: Path) -> None:
  """Deletes what writers that were killed have left in a folder; for one who holds its lock."""
  for path in folder.glob(f'.*{UNFINISHED}'):
    path.unlink()


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
  """Writes an object as JSON; a number that is not finite is refused."""
  return write_atomically(path, json.dumps(value, indent=2, allow_nan=False), '\n')


def write_sealed(path: Path, value: Mapping[str, Any]) -> Path:
  """Writes an object as JSON, with a checksum of it that `read_json` compares."""
  return write_json(path, {**value, CHECKSUM: checksum_of(value)})


def checksum_of(value: Mapping[str, Any]) -> str:
  """The sha256 of an object's canonical JSON: keys sorted, as json.dumps separates them."""
  return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _never(value: Mapping[str, Any]) -> bool:
  return False


def read_json(
  path: Path, remedy: str = SMALLEST_REMEDY, sealed: Callable[[Mapping[str, Any]], bool] = _never
) -> dict[str, Any] | None:
  """The object in a JSON file; None if there is no such file.

  Args:
    path: of the file.
    remedy: what to do if it is damaged, which ends the message: it should cost no more than what is lost.
    sealed: whether the object must have a checksum. One that is there is compared anyhow.

  Returns:
    The object, without the checksum if it was written with one.

  Raises:
    Damaged: if it holds anything else: no JSON, no object, a key twice, a number that is not finite, or something else
      than its checksum was taken of.
    ConfigError: if it cannot be read.
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
      raise ValueError('its checksum is gone')
  except ValueError as error:
    raise Damaged(f'{path} is damaged ({error})', remedy) from None
  return {name: one for name, one in value.items() if name != CHECKSUM}


def parse_json(content: bytes | str) -> dict[str, Any]:
  """The object in a JSON text, its checksum compared if it has one.

  Raises:
    ValueError: if there is none that may be believed; see `read_json`.
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
    raise ValueError(f'{next(name for name in names if names.count(name) > 1)!r} is there twice')
  return value


def _refuse_constant(name: str) -> float:
  raise ValueError(f'{name} is no JSON')


def _finite(text: str) -> float:
  number = float(text)
  if not math.isfinite(number):
    raise ValueError(f'{text[:40]} is too large a number')
  return number
