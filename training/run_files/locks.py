"""Locks: at any time, at most one command claims a run, one process trains it, and one command writes a report.

Where the file system supports them, `flock` and `fcntl` are used: the system releases their locks when the process
ends for any reason, on every machine that shares the file system. On others (Lustre without -o flock, some NFS and FUSE
mounts) a warning is logged and lock files are used instead; training/run_files/lock_files.py states their guarantees.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from absl import logging

from model.config import ConfigError
from training.run_files import lock_files
from training.run_files.lock_files import LockFile
from training.run_files.run_directory import workdir_of

LOCK = 'lock'  # file in a run's directory, locked by the process that trains the run
CLAIM = 'claim'  # file in a run's directory, with the name of the command that has claimed the run
CLAIMS = 'claims'  # file in an experiment's directory: each command locks a byte of it for each of its runs
RELEASE_WITHIN = 10.0  # seconds in which a worker whose command was killed saves and exits
REPORT_WITHIN = 600.0  # seconds another command may take to write its report
ANNOUNCE_AFTER = 2.0  # seconds of waiting
QUERY_WITHIN = 0.05  # seconds: a process that only queries a lock holds it for less
INTERVAL = 0.05  # seconds between attempts
UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)


class Moved(Exception):  # noqa: N818 - an event
  """The directory of a run was moved, deleted or taken over while the run was in progress."""


class Lock:
  """A lock that this process holds; `check` verifies that it is still valid."""

  def __init__(self, path: Path, held: IO | LockFile):
    self._path, self.held = path.absolute(), held
    self._folder = _inode(self._path.parent)

  def check(self) -> None:
    """Raises Moved if the lock, or the folder it is in, is no longer the one that was locked."""
    folder = self._path.parent
    if _inode(folder) != self._folder:
      raise Moved(
        f'{folder} was moved or deleted while in use: put it back, and the same command resumes from the last '
        'checkpoint'
      )
    if isinstance(self.held, LockFile):
      ours = self.held.is_ours()
    else:
      opened = os.fstat(self.held.fileno())
      ours = _inode(self._path) == (opened.st_dev, opened.st_ino)
    if not ours:
      raise Moved(f'{self._path} was deleted or replaced while in use: another process may train this run')


@contextlib.contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[Lock]:
  """Holds a lock, and writes the name of this process to its file.

  Args:
    path: the lock file's path; the file and its folder are created.
    patience: seconds to wait for another process to release the lock; after a while, a line on stderr names it.

  Raises:
    ConfigError: if another process holds the lock, naming it.
    OSError: if the file cannot be created.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  lock = _wait_for(lambda: _acquire(path), path, patience)
  if isinstance(lock.held, LockFile):
    with lock_files.beating([lock.held]):
      yield lock
  else:
    with lock.held:
      yield lock


@contextlib.contextmanager
def claimed(directories: Sequence[Path]) -> Iterator[Callable[[], None]]:
  """Claims the runs in these directories for this command, with one open file per experiment.

  Yields:
    A function that raises Moved if the folder of an experiment was moved or deleted.

  Raises:
    ConfigError: if another process has claimed one of them, naming it.
    OSError: if a file cannot be created.
  """
  files: dict[Path, IO] = {}
  locks: list[Lock] = []
  substitutes: list[LockFile] = []
  with contextlib.ExitStack() as stack:
    for directory in directories:
      directory.mkdir(parents=True, exist_ok=True)
      path = _claims_of(directory)
      if path not in files:
        files[path] = stack.enter_context(_open(path, 'a+'))
        locks.append(Lock(path, files[path]))
      try:
        free = _lock_byte(files[path], directory, fcntl.F_WRLCK)
      except OSError as error:
        _warn_of(error, path.parent)
        if not substitutes:
          stack.enter_context(lock_files.beating(substitutes))  # also those added later
        held = lock_files.acquire(_lock_file(directory / CLAIM))
        substitutes += [held] if held else []
        free = held is not None
      if not free:
        raise _refusal(directory, claimant(directory))
      (directory / CLAIM).write_text(_this_process(), 'utf8')
    yield functools.partial(_check_all, locks)


def check_free(directory: Path) -> None:
  """Raises ConfigError if another command has claimed the run or a process trains it; writes nothing.

  If the run is trained but not claimed, its command was killed: this waits until its worker has saved and exited.
  """
  if process := claimant(directory):
    raise _refusal(directory, process)
  _wait_for(lambda: trainer(directory) is None, directory / LOCK, RELEASE_WITHIN, of_run=True)


def trainer(directory: Path) -> str | None:
  """The process that trains the run, such such as `process 12 on host`, or None."""
  return holder(directory / LOCK)


def claimant(directory: Path) -> str | None:
  """The command that has claimed the run, such as `process 12 on host`, or None."""
  if process := lock_files.holder(_lock_file(directory / CLAIM)):
    return process
  with contextlib.suppress(FileNotFoundError, NotADirectoryError), _open(_claims_of(directory), 'r') as file:
    try:
      return None if _lock_byte(file, directory, fcntl.F_RDLCK) else _name_in(directory / CLAIM)
    except OSError as error:
      if error.errno not in UNSUPPORTED:
        raise
  return None


def holder(path: Path) -> str | None:
  """The process that holds a lock, such as `process 12 on host`, or None; writes nothing."""
  if process := lock_files.holder(_lock_file(path)):
    return process
  with contextlib.suppress(FileNotFoundError, NotADirectoryError), _open(path, 'r') as file:
    end = time.monotonic() + QUERY_WITHIN
    try:
      while not _flock(file, fcntl.LOCK_SH):
        if time.monotonic() > end:
          return _name_in(path)
        time.sleep(0.01)
    except OSError as error:
      if error.errno not in UNSUPPORTED:
        raise
  return None


def _check_all(locks: Sequence[Lock]) -> None:
  for lock in locks:
    lock.check()


def _acquire(path: Path) -> Lock | None:
  """The lock; None if another process has it."""
  if lock_files.holder(_lock_file(path)):
    return None
  file = _open(path, 'a+')
  try:
    if _flock(file, fcntl.LOCK_EX):
      file.truncate(0)
      file.write(_this_process())
      file.flush()
      return Lock(path, file)
  except OSError as error:
    file.close()
    _warn_of(error, path.parent)
    held = lock_files.acquire(_lock_file(path))
    return Lock(path, held) if held else None
  except BaseException:
    file.close()
    raise
  file.close()
  return None


def _wait_for(attempt: Callable, path: Path, patience: float, of_run: bool = False):
  """Repeats an attempt until its result is true, and returns that; raises ConfigError after `patience` seconds."""
  start, announced = time.monotonic(), False
  while not (gained := attempt()):
    waited = time.monotonic() - start
    if waited > max(patience, QUERY_WITHIN):
      process = holder(path) or 'another process'
      if of_run or patience < ANNOUNCE_AFTER:
        raise _refusal(path.parent, process)
      raise ConfigError(f'{path} has been held by {process} for {patience:.0f} s: stop it, or try again later')
    if waited > ANNOUNCE_AFTER and not announced:
      announced = True
      print(f'waiting for {holder(path) or "another process"} to release {path}', file=sys.stderr)
    time.sleep(INTERVAL if waited > QUERY_WITHIN else 0.01)
  return gained


def _refusal(directory: Path, process: str | None) -> ConfigError:
  return ConfigError(f'{directory} is being trained by {process or "another process"}: wait for it, or stop it')


def _flock(file: IO, kind: int) -> bool:
  """Tries to lock the file without waiting; returns whether that succeeded."""
  try:
    fcntl.flock(file, kind | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def _lock_byte(file: IO, directory: Path, kind: int) -> bool:
  """Tries to lock the byte of a run in its experiment's claims; returns whether that succeeded."""
  name = directory.absolute().relative_to(_claims_of(directory).absolute().parent)
  byte = int.from_bytes(hashlib.sha256(str(name).encode('utf8', 'surrogateescape')).digest()[:8]) >> 2
  end = time.monotonic() + QUERY_WITHIN
  while True:
    try:
      if sys.platform == 'linux':  # an open file description lock: closing another file of this path keeps it
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack('@hhqqi0q', kind, os.SEEK_SET, byte, 1, 0))
      else:
        fcntl.lockf(file, (fcntl.LOCK_EX if kind == fcntl.F_WRLCK else fcntl.LOCK_SH) | fcntl.LOCK_NB, 1, byte)
      return True
    except (BlockingIOError, PermissionError):  # POSIX allows either
      if time.monotonic() > end:
        return False
      time.sleep(0.01)


def _claims_of(directory: Path) -> Path:
  """The file with the claims of the run's experiment: <workdir>/<experiment>/claims."""
  directory = directory.absolute()
  workdir = workdir_of(directory)
  return workdir.joinpath(*directory.relative_to(workdir).parts[:1], CLAIMS)


def _lock_file(path: Path) -> Path:
  return path.with_name(f'{path.name}.held')


def _open(path: Path, mode: str) -> IO:
  try:
    return path.open(mode)
  except IsADirectoryError:
    raise ConfigError(f'{path} is a folder, where a file is needed: move it') from None


def _name_in(path: Path) -> str:
  with contextlib.suppress(FileNotFoundError):
    return path.read_text('utf8', errors='replace').strip() or 'another process'
  return 'another process'


def _this_process() -> str:
  return f'process {os.getpid()} on {socket.gethostname()}'


def _inode(path: Path) -> tuple[int, int] | None:
  """The device and inode of a path; None if it does not exist."""
  try:
    found = path.stat()
  except (FileNotFoundError, NotADirectoryError):
    return None
  return found.st_dev, found.st_ino


def _warn_of(error: OSError, folder: Path) -> None:
  """Warns once that the file system of a folder has no locks; raises any other error."""
  if error.errno not in UNSUPPORTED:
    raise error
  mount = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_mount())
  _warn_once(str(mount), error.strerror or '')


@functools.cache
def _warn_once(mount: str, reason: str) -> None:
  logging.warning(
    'the file system at %s has no locks (%s): lock files are used instead. When a process ends, its run is free at '
    'once on this machine, and after %.0f s on other machines', mount, reason, lock_files.EXPIRY,
  )  # fmt: skip
