"""Lock files with a heartbeat, for file systems without `flock`.

Guarantees: on one machine, at most one process holds a lock file, and the lock is free as soon as that process dies.
Across machines, a process holds it as long as its heartbeat reaches the file system at least every EXPIRY seconds; a
process that was suspended for longer notices before it saves (`LockFile.is_ours`).
"""

import contextlib
import functools
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HEARTBEAT = 15.0  # seconds between heartbeats
EXPIRY = 300.0  # seconds without a heartbeat after which another machine may take the lock
ATTEMPTS = 3  # to create the file, each after removing a stale one


class LockFile(NamedTuple):
  """A lock file that this process created, and the token it wrote to it."""

  path: Path
  token: str

  def is_ours(self) -> bool:
    """Whether the file is still the one that this process created."""
    return (_read(self.path) or {}).get('token') == self.token


def acquire(path: Path) -> LockFile | None:
  """Creates the lock file, replacing a stale one; None if a live process holds it.

  Raises:
    OSError: if the file cannot be created.
  """
  for _ in range(ATTEMPTS):
    token = secrets.token_hex(8)
    owner = {'token': token, 'host': socket.gethostname(), 'pid': os.getpid(), 'started': _started(os.getpid())}
    try:
      with path.open('x') as file:
        file.write(json.dumps(owner | {'machine': _machine()}))
      return LockFile(path, token)
    except FileExistsError:
      stale = _read(path)
      if _is_live(path, stale, _clock_of(path.parent)):
        return None
      _remove(path, stale)
  return None


def release(lock: LockFile) -> None:
  """Deletes a lock file of this process, unless it has been taken over or moved away."""
  if lock.is_ours():
    lock.path.unlink(missing_ok=True)


def holder(path: Path) -> str | None:
  """The live process that holds a lock file, such as `process 12 on host`, or None; writes nothing."""
  owner = _read(path)
  if owner is None or not _is_live(path, owner, time.time()):
    return None
  return f'process {owner["pid"]} on {owner["host"]}' if owner else 'another process'


@contextlib.contextmanager
def beating(locks: Sequence[LockFile]) -> Iterator[None]:
  """Updates the lock files from a thread, as heartbeats, and releases them at the end."""
  done = threading.Event()

  def beat() -> None:
    while not done.wait(HEARTBEAT):
      for lock in locks:
        with contextlib.suppress(OSError):  # a file server may be down for a while; is_ours notices if it was too long
          if lock.is_ours():
            os.utime(lock.path)

  thread = threading.Thread(target=beat, daemon=True, name='lock heartbeat')
  try:
    thread.start()
    yield
  finally:
    done.set()
    for lock in locks:
      release(lock)


def _read(path: Path) -> dict[str, Any] | None:
  """The owner of a lock file; None if there is no file, {} while its owner is still writing it."""
  try:
    owner = json.loads(path.read_text('utf8'))
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (ValueError, RecursionError):
    return {}
  return owner if isinstance(owner, dict) and owner.keys() >= {'token', 'host', 'pid', 'machine', 'started'} else {}


def _is_live(path: Path, owner: dict[str, Any] | None, now: float) -> bool:
  if owner and owner['machine'] == _machine():
    return owner['started'] is not None and _started(owner['pid']) == owner['started']
  try:
    return owner is not None and now - path.stat().st_mtime < EXPIRY
  except FileNotFoundError:
    return False


def _remove(path: Path, stale: dict[str, Any] | None) -> None:
  """Removes a stale lock file, unless another one has replaced it since it was read."""
  aside = path.with_name(f'.{path.name}.{secrets.token_hex(8)}.unfinished')
  try:
    path.rename(aside)
  except FileNotFoundError:
    return  # another process has removed it
  if _read(aside) != stale:
    with contextlib.suppress(OSError):  # another process took it over meanwhile: restore its file
      os.link(aside, path)
  aside.unlink(missing_ok=True)


def _clock_of(folder: Path) -> float:
  """The current time by the clock of the folder's file system, which may be a file server's."""
  probe = folder / f'.clock.{secrets.token_hex(8)}.unfinished'
  try:
    probe.touch()
    return probe.stat().st_mtime
  finally:
    probe.unlink(missing_ok=True)


@functools.cache
def _machine() -> str:
  """Identifies the processes that see each other's ids: host, boot, and namespace of process ids."""
  try:
    boot, namespace = Path('/proc/sys/kernel/random/boot_id').read_text().strip(), os.readlink('/proc/self/ns/pid')
  except OSError:  # not Linux
    boot, namespace = '', ''
  return f'{socket.gethostname()} {boot} {namespace}'.strip()


def _started(pid: int) -> str | None:
  """When a process started, which distinguishes it from a later one with the same id; '' if unknown.

  None if the process does not exist or is a zombie.
  """
  try:
    fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    return None if fields[0] in 'ZX' else fields[19]
  except FileNotFoundError:
    if Path('/proc/self/stat').exists():
      return None
  except ProcessLookupError:
    return None
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return None
  except PermissionError:
    pass
  return ''
