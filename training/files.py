"""The one way to write a file that is read again: whole, or not at all."""

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, *parts) -> None:
  """Writes a file whole or not at all, however many processes do so at once.

  Args:
    path: where; its folder is made.
    *parts: bytes, or arrays of them, one after the other.

  Raises:
    OSError: if it cannot be written; nothing is left behind, and a file that was there stays as it was.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
  try:
    with open(descriptor, 'wb') as file:
      for part in parts:
        file.write(part)
    os.chmod(temporary, 0o644)  # mkstemp keeps a file to its owner; results are for the group, too
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(FileNotFoundError):
      os.unlink(temporary)
    raise
