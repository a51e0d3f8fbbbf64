"""Folders for data that outlives a run, also for a user without a home folder, as in `docker run --user 12345`."""

import os
import tempfile
from pathlib import Path


def home() -> Path | None:
  """The user's home folder; None if there is none."""
  path = Path(os.path.expanduser('~'))
  return path if path.is_absolute() else None


def make_folder(folder: Path | None) -> bool:
  """Creates a folder if necessary; returns whether it exists and is writable."""
  if folder is None or not folder.is_absolute():
    return False
  try:
    folder.mkdir(parents=True, exist_ok=True)  # os.access alone is not enough for root, who has every permission
  except OSError:
    return False
  return os.access(folder, os.W_OK | os.X_OK)


def temporary_folder() -> Path:
  """A private temporary folder that replaces the home folder; the same one at every call while it exists."""
  folder = Path(tempfile.gettempdir()) / f'blocklab-{os.getuid()}'
  try:
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid == os.getuid() and not status.st_mode & 0o022 and folder.is_dir() and not folder.is_symlink():
      return folder  # no other user can put a compiled program there
  except OSError:
    pass
  return Path(tempfile.mkdtemp(prefix='blocklab-'))
