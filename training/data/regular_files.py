"""Reads the user's files: only regular files, which every process can read again, and only if they fit in memory."""

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
  stat.S_IFDIR: 'a directory',
}
PER_PROCESS = ('/proc/', '/dev/fd/', '/dev/stdin')  # in a worker process, these paths name other files
SMALL = 2**24  # bytes; not checked against free memory
COPIES = 4  # of a text in memory: as read, decoded, joined, and as tokens


def read_regular_file(setting: str, path: str) -> bytes:
  """Returns the content of a regular file.

  Args:
    setting: the config field that names the file, for messages.
    path: the file.

  Raises:
    ConfigError: if the path is not a regular file (a pipe could be read only once, by one process), the file does not
      fit in memory or is not readable, or its name is not valid UTF-8, which the reports that contain the name must be.
  """
  try:
    path.encode()
  except UnicodeEncodeError:
    raise ConfigError(f'{setting}: the file name {path!r} is not valid UTF-8: rename the file') from None
  if '\0' in path:
    raise ConfigError(f'{setting}: {path!r} is not a valid file name: it contains a NUL character')
  if os.path.abspath(path).startswith(PER_PROCESS):
    raise ConfigError(
      f'{setting}: {path} is a different file in each process: save its content to a file, and name that file'
    )
  try:
    status = os.stat(path)
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
      raise ConfigError(
        f'{setting}: {path} is {KINDS.get(kind, "not a regular file")}, which not every process can read: '
        'save its content to a file, and name that file'
      )
    if status.st_size > SMALL:
      check_fits_in_memory(setting, path, status.st_size, free_memory())
    return pathlib.Path(path).read_bytes() if status.st_size else b''
  except OSError as error:
    raise ConfigError(
      f'{setting}: cannot read {path} ({error.strerror}): make it readable, or name another file'
    ) from None


def check_fits_in_memory(setting: str, path: str, num_bytes: int, memory: int) -> None:
  """Raises ConfigError if a text of this size does not fit in memory while it is tokenized.

  Args:
    setting: the config field that names the file, for messages.
    path: the file, for messages.
    num_bytes: the size of the text, or a lower bound of it.
    memory: the bytes that are free.
  """
  if num_bytes * COPIES > memory:
    raise ConfigError(
      f'{setting}: {path} has at least {num_bytes / 2**30:.1f} GiB of text, which needs {COPIES} times as much memory, '
      f'but only {memory / 2**30:.1f} GiB is free: use less text'
    )
