"""Paths that users pass in flags: `~` is expanded, and paths that cannot be written or printed are refused."""

import os
import unicodedata
from pathlib import Path

from model.config import ConfigError


def parse_path(text: str, flag: str) -> Path:
  """The path in a flag; on disk only its parent folders are looked up.

  Args:
    text: the value of the flag; `~` and `~user` are expanded to home folders.
    flag: its name in messages, such as `--workdir`.

  Raises:
    ConfigError: if there is no such user; if the path or the current folder is not UTF-8 or has a control character,
      which would break logs, tables and batch scripts; or if no file can have this path.
  """
  shown = f'{flag}={printable(text)}'
  try:
    path = Path(text).expanduser()
  except RuntimeError:
    raise ConfigError(f'{shown}: no such user, or no home folder: write the full path') from None
  try:
    full = str(path.absolute())
  except FileNotFoundError:
    raise ConfigError(f'{shown}: the current folder has been deleted: change to another one') from None
  where = shown if path.is_absolute() or not is_one_line(str(path)) else f'the current folder, {printable(full)}'
  if not is_one_line(full):
    raise ConfigError(f'{where}: its name is not UTF-8, or contains a line break or control character: rename it')
  try:
    for folder in (Path(full), *Path(full).parents):
      if folder.is_symlink() and not os.path.exists(folder):
        raise ConfigError(f'{shown}: {folder} is a dangling link: remove it, or choose another path')
  except OSError as error:  # the name is too long, or a folder may not be read
    raise ConfigError(f'{shown}: {error.strerror}: choose another path') from None
  return path


def check_output(folder: Path, flag: str) -> None:
  """Raises ConfigError if a folder cannot be created or written to."""
  nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
  if not nearest.is_dir():
    raise ConfigError(f'{flag}={folder}: {nearest} is a file, where a folder is needed')
  if not os.access(nearest, os.W_OK | os.X_OK):
    raise ConfigError(f'{flag}={folder}: {nearest} is not writable: choose another folder')


def is_one_line(text: str) -> bool:
  """Whether a name is UTF-8 without control characters and line breaks."""
  try:
    text.encode('utf8')
  except UnicodeEncodeError:  # from bytes that were not UTF-8
    return False
  return not any(unicodedata.category(character) in ('Cc', 'Zl', 'Zp') for character in text)


def printable(text: str) -> str:
  """The text in one line, with escapes if it cannot be printed."""
  return text if is_one_line(text) else repr(text)[1:-1]
