"""Where what is kept between runs goes, also for a user without a home folder, as in `docker run --user 12345`."""

import os
import tempfile
from pathlib import Path


def home() -> Path | None:
  """The user's home folder; None if the system knows none."""
  path = Path(os.path.expanduser('~'))
  return path if path.is_absolute() else None


def make_folder(folder: Path | None) -> bool:
  """Whether a folder is there, or has been made, and can be written."""
  if folder is None or not folder.is_absolute():
    return False
  try:
    folder.mkdir(parents=True, exist_ok=True)  # tried, since root has every permission, even where nothing can be made
  except OSError:
    return False
  return os.access(folder, os.W_OK | os.X_OK)


def temporary_folder() -> Path:
  """A folder of this user's alone for what would be kept at home; the same at the next call, as long as it is left."""
  folder = Path(tempfile.gettempdir()) / f'blocklab-{os.getuid()}'
  try:
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if about.st_uid == os.getuid() and not about.st_mode & 0o022 and folder.is_dir() and not folder.is_symlink():
      return folder  # and nobody else can put a compiled program there
  except OSError:
    pass
  return Path(tempfile.mkdtemp(prefix='blocklab-'))
