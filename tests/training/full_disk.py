"""A disk without room."""

import contextlib
import resource


@contextlib.contextmanager
def room_for(size: int):
  """No file can be written to beyond so many bytes: what a full disk does, and needs no privilege."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
