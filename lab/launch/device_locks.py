"""Who trains on which core or GPU of this machine: commands side by side take different ones as long as there are any.

A worker's core is a file that its command holds a lock on, in a folder that all users share; a lock ends with its
process. Where all are taken, each is taken once more, and so on: a level is one worker on every core. The numbers that
a run comes to do not depend on which core it has.
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

LEVELS = 64  # workers on one core; of more, nobody keeps count
FOLDER = Path('/tmp' if os.access('/tmp', os.W_OK) else tempfile.gettempdir()) / 'blocklab-devices'


class Taken(NamedTuple):
  """The devices of one worker, and how many workers the fullest of them had before."""

  names: list[str]
  level: int


@contextlib.contextmanager
def taken(kind: str, names: Sequence[str], counts: Sequence[int]) -> Iterator[list[Taken]]:
  """Takes devices for workers, those that the fewest workers have first; inside, they are theirs.

  Args:
    kind: of the devices: `core`, `gpu` or `chip`.
    names: of those there are to choose from.
    counts: how many each worker is to have; none has one twice.
  """
  with contextlib.ExitStack() as locks:
    usable = _make_folder()
    found, uses = [], dict.fromkeys(names, 0)
    for count in counts:
      free = _take(kind, names, min(count, len(names)), locks) if usable else None
      if free is None:
        chosen = sorted(names, key=lambda name: uses[name])[:count]  # by what this command has taken itself
        free = Taken(chosen, LEVELS if usable else max(uses[name] for name in chosen))
      found.append(free)
      for name in found[-1].names:
        uses[name] += 1
    yield found


def own_level(workers: int, devices: int) -> int:
  """The highest level that a command's own workers come to, with the machine to themselves."""
  return math.ceil(workers / devices) - 1


def _take(kind: str, names: Sequence[str], count: int, locks: contextlib.ExitStack) -> Taken | None:
  """The devices of one worker; None if there are not enough that nobody has at some level."""
  chosen: list[str] = []
  for level in range(LEVELS):
    for name in names:
      if len(chosen) < count and name not in chosen:
        lock = _lock(FOLDER / f'{kind}-{re.sub(r"[^A-Za-z0-9-]", "_", name)}.{level}')
        if lock is not None:
          locks.callback(os.close, lock)
          chosen.append(name)
    if len(chosen) == count:
      return Taken(chosen, level)
  return None


def _make_folder() -> bool:
  """Makes the folder, for all users; whether there can be one, with locks in it."""
  with contextlib.suppress(OSError):  # it is there, or cannot be: see below
    FOLDER.mkdir()
    FOLDER.chmod(0o1777)
  probe = None if FOLDER.is_symlink() else _open(FOLDER / 'probe')
  if probe is None:
    return False
  try:
    fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:  # another command looks
    return True
  except OSError:  # a file system without locks, or one that locks only what is written to, as NFS does
    return False
  finally:
    os.close(probe)
  return True


def _lock(path: Path) -> int | None:
  """A file, open and locked; None if it is locked already, or cannot be opened."""
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
  """A file that is there, whoever made it, or a new one: only read, since a lock needs no more."""
  for flags in (os.O_RDONLY, os.O_RDONLY | os.O_CREAT):  # Linux lets nobody create over another user's file there
    with contextlib.suppress(OSError):
      descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
      with contextlib.suppress(OSError):
        os.fchmod(descriptor, 0o644)  # its maker's umask may keep it from the others
      return descriptor
  return None
