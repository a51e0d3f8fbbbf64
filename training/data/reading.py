"""Reads the user's files: whole, and only what every process that asks can read again."""

import os
import pathlib
import stat

from training.config import ConfigError
from training.data.free_memory import free_memory

KINDS = {
  stat.S_IFIFO: 'a pipe',
  stat.S_IFSOCK: 'a socket',
  stat.S_IFCHR: 'a device',
  stat.S_IFBLK: 'a device',
  stat.S_IFDIR: 'a folder',
}
OF_A_PROCESS = ('/proc/', '/dev/fd/', '/dev/stdin')  # in a worker these are something else
SMALL = 2**24  # bytes that any machine has memory for
COPIES = 4  # of a text in memory: as read, decoded, joined, and as tokens


def read_regular(setting: str, path: str) -> bytes:
  """The bytes of a file that lies on a disk.

  Args:
    setting: what named it, for messages.
    path: the file.

  Raises:
    ConfigError: if it is anything else than a file (a pipe could be read once, by one process), is larger than memory
      can hold, or may not be read, or if its name is not UTF-8, as the reports that name it are.
  """
  try:
    path.encode()
  except UnicodeEncodeError:
    raise ConfigError(f'{setting}: the name {path!r} is not UTF-8: rename the file') from None
  if '\0' in path:
    raise ConfigError(f'{setting}: {path!r} cannot be the name of a file: it has a NUL character')
  if os.path.abspath(path).startswith(OF_A_PROCESS):
    raise ConfigError(f'{setting}: {path} is another file in every process: write its content to a file, and name that')
  try:
    status = os.stat(path)
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
      raise ConfigError(
        f'{setting}: {path} is {KINDS.get(kind, "no file")}, and every process reads the file again: '
        'write its content to a file, and name that'
      )
    if status.st_size > SMALL:
      check_size(setting, path, status.st_size, free_memory())
    return pathlib.Path(path).read_bytes() if status.st_size else b''
  except OSError as error:
    raise ConfigError(f'{setting}: cannot read {path} ({error.strerror}): make it readable, or name another') from None


def check_size(setting: str, path: str, num_bytes: int, memory: int) -> None:
  """Raises ConfigError if memory cannot hold a text of this size while it becomes tokens."""
  if num_bytes * COPIES > memory:
    raise ConfigError(
      f'{setting}: {path} has {num_bytes / 2**30:.1f} GiB of text or more, which takes {COPIES} times as much memory, '
      f'and {memory / 2**30:.1f} GiB are free: give less of it'
    )
