"""Paths as a person gives them: `~` expanded, and what could not be written, printed or recorded refused at once."""

import os
import unicodedata
from pathlib import Path

from model.config import ConfigError


def parse_path(text: str, flag: str) -> Path:
  """The path that a flag names; nothing is looked up but the folders on its way.

  Args:
    text: as given; `~` and `~user` stand for home folders.
    flag: its name in messages, as `--workdir`.

  Raises:
    ConfigError: if there is no such user, if the path or the current folder is not UTF-8 or has a control character in
      it (it would not come back whole from a log, a table or a batch script), or if it cannot be that of a file.
  """
  shown = f'{flag}={printable(text)}'
  try:
    path = Path(text).expanduser()
  except RuntimeError:
    raise ConfigError(f'{shown}: there is no such user, or no home folder: write the path out') from None
  try:
    whole = str(path.absolute())
  except FileNotFoundError:
    raise ConfigError(f'{shown}: the current folder has been deleted: change to another one') from None
  where = shown if path.is_absolute() or not is_one_line(str(path)) else f'the current folder, {printable(whole)}'
  if not is_one_line(whole):
    raise ConfigError(f'{where}: its name is not UTF-8, or has a line break or a control character in it: rename it')
  try:
    for folder in (Path(whole), *Path(whole).parents):
      if folder.is_symlink() and not os.path.exists(folder):
        raise ConfigError(f'{shown}: {folder} is a link to what is not there: remove it, or give another path')
  except OSError as error:  # a name that is too long, or a folder that may not be looked into
    raise ConfigError(f'{shown}: {error.strerror}: give another path') from None
  return path


def check_output(folder: Path, flag: str) -> None:
  """Raises ConfigError if a folder cannot be made and written to, before there is anything to write."""
  nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
  if not nearest.is_dir():
    raise ConfigError(f'{flag}={folder}: {nearest} is a file, and a folder is needed there')
  if not os.access(nearest, os.W_OK | os.X_OK):
    raise ConfigError(f'{flag}={folder}: {nearest} cannot be written to: give another folder')


def is_one_line(text: str) -> bool:
  """Whether a name is UTF-8 without control characters, so that it is one line wherever it is written."""
  try:
    text.encode('utf8')
  except UnicodeEncodeError:  # bytes that were not UTF-8
    return False
  return not any(unicodedata.category(character) in ('Cc', 'Zl', 'Zp') for character in text)


def printable(text: str) -> str:
  """The text in one line, with escapes for what cannot be printed."""
  return text if is_one_line(text) else repr(text)[1:-1]
