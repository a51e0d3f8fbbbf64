"""A full disk."""

import contextlib
import resource


@contextlib.contextmanager
def limited_file_size(size: int):
  """Limits the size of files, which has the effect of a full disk and needs no privilege."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
