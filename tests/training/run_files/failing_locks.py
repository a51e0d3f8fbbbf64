"""A process in which no file can be locked, as on Lustre without -o flock; Python's locks only: see no_locks.py."""

import errno
import fcntl
import os


def fail_locks(number: int = errno.ENOSYS, replace=setattr) -> None:
  """Makes every function of `fcntl` that locks raise this OSError.

  Args:
    number: the error number.
    replace: pass `monkeypatch.setattr` to undo it at the end of the test.
  """

  def refuse(*arguments):
    raise OSError(number, os.strerror(number))

  for name in ('flock', 'fcntl', 'lockf'):
    replace(fcntl, name, refuse)
