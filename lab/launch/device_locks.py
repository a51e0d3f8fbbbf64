"""Locks on the cores and GPUs of this machine, so that commands that run at the same time use different ones.

A device is reserved by locking one of its files in a folder that all users share; the lock is released when the command
exits. Once every device has a worker, each gets a second one, and so on: the level of a worker is the number of workers
that its device already had. The results of a run do not depend on its core.
"""

import contextlib
import fcntl
import math
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MAX_LEVELS = 64  # the largest number of workers on one device that is tracked
FOLDER = Path('/tmp' if os.access('/tmp', os.W_OK) else tempfile.gettempdir()) / 'blocklab-devices'


class Reservation(NamedTuple):
  """The devices reserved for one worker, and the largest number of workers that one of them already had."""

  names: list[str]
  level: int


@contextlib.contextmanager
def reserve(kind: str, names: Sequence[str], counts: Sequence[int]) -> Iterator[list[Reservation]]:
  """Reserves devices for workers while the context is open, those with the fewest workers first.

  If files cannot be locked, the devices are chosen as if no other command were running.

  Args:
    kind: the kind of the devices: `core`, `gpu` or `chip`.
    names: the devices to choose from.
    counts: the number of distinct devices that each worker needs.

  Yields:
    The reservation of each worker.
  """
  with contextlib.ExitStack() as locks:
    usable = _create_folder()
    reserved, uses = [], dict.fromkeys(names, 0)
    for count in counts:
      reservation = _lock_devices(kind, names, min(count, len(names)), locks) if usable else None
      if reservation is None:
        chosen = sorted(names, key=lambda name: uses[name])[:count]  # the least used by this command itself
        reservation = Reservation(chosen, MAX_LEVELS if usable else max(uses[name] for name in chosen))
      reserved.append(reservation)
      for name in reservation.names:
        uses[name] += 1
    yield reserved


def level_without_others(workers: int, devices: int) -> int:
  """The highest level that a command's workers reach if no other command runs."""
  return math.ceil(workers / devices) - 1


def _lock_devices(kind: str, names: Sequence[str], count: int, locks: contextlib.ExitStack) -> Reservation | None:
  """Locks the devices of one worker; None if fewer are free, even at the highest level."""
  chosen: list[str] = []
  for level in range(MAX_LEVELS):
    for name in names:
      if len(chosen) < count and name not in chosen:
        lock = _lock(FOLDER / f'{kind}-{re.sub(r"[^A-Za-z0-9-]", "_", name)}.{level}')
        if lock is not None:
          locks.callback(os.close, lock)
          chosen.append(name)
    if len(chosen) == count:
      return Reservation(chosen, level)
  return None


def _create_folder() -> bool:
  """Creates the folder, writable by all users, and returns whether files in it can be locked."""
  with contextlib.suppress(OSError):  # it exists, or cannot be created: the probe below shows which
    FOLDER.mkdir()
    FOLDER.chmod(0o1777)
  probe = None if FOLDER.is_symlink() else _open(FOLDER / 'probe')
  if probe is None:
    return False
  try:
    fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:  # another command is probing
    return True
  except OSError:  # a file system without locks, or one that locks only files open for writing, such as NFS
    return False
  finally:
    os.close(probe)
  return True


def _lock(path: Path) -> int | None:
  """Opens and locks a file and returns its descriptor; None if it is locked already, or cannot be opened."""
  descriptor = _open(path)
  if descriptor is None:
    return None
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:
    os.close(descriptor)
    return None
  return descriptor


def _open(path: Path) -> int | None:
  """Opens a file, or creates it. Read access is enough for a lock, and is all that another user's file allows."""
  # First without O_CREAT: Linux refuses it for another user's file in a sticky folder.
  for flags in (os.O_RDONLY, os.O_RDONLY | os.O_CREAT):
    with contextlib.suppress(OSError):
      descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
      with contextlib.suppress(OSError):
        os.fchmod(descriptor, 0o644)  # the umask may have denied other users read access
      return descriptor
  return None
