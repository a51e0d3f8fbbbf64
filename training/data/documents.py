"""Reads the documents to train on: the King James Bible, or the user's own files."""

import glob
import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from absl import logging

from training.config import ConfigError, DataConfig
from training.data.decompression import decompress
from training.data.free_memory import free_memory
from training.data.json_records import is_json, is_json_lines, json_line_texts, json_texts
from training.data.kjv import read_kjv
from training.data.regular_files import check_fits_in_memory, read_regular_file
from training.data.text_detection import check_is_text, first_invalid_utf8, to_utf8

MIN_DUPLICATE = 2**14  # bytes: shorter files, such as licences, may be identical


class TextFile(NamedTuple):
  """The text in a file, or in a member of a compressed file.

  Attributes:
    path: the file, for messages.
    documents: its texts; in UTF-8 unless `invalid_utf8` is set.
    invalid_utf8: the offset of the first byte that is not valid UTF-8, if any.
  """

  path: str
  documents: list[bytes]
  invalid_utf8: int | None

  @property
  def size(self) -> int:
    """Bytes of text."""
    return sum(len(document) for document in self.documents)


def read_documents(config: DataConfig) -> list[bytes]:
  """Returns the documents of `data.task`: the books of the Bible, or the user's files and the records in them.

  The text to train on is the documents joined by newlines.

  Raises:
    ConfigError: if a file is unreadable or is not text; the message names the file and the remedy.
  """
  if config.task == 'kjv':
    return read_kjv()
  files: list[TextFile] = []
  size, memory = 0, free_memory()
  for path in find_files(config.paths):
    found = read_file(path, config.text_field)
    files += found
    size += sum(file.size for file in found)
    check_fits_in_memory('data.paths', f'{config.paths}, up to {path},', size, memory)
  check_duplicates(files)
  check_encodings(files, config.tokenizer)
  return [document for file in files for document in file.documents]


def find_files(patterns: str) -> list[str]:
  """Returns the files that match comma-separated paths and globs.

  They are in the order of the patterns, and sorted within a glob. A file that several patterns match is listed once,
  because text that occurs twice could be both trained on and held out.

  Raises:
    ConfigError: if a pattern is a directory or matches no file, or if there is no pattern.
  """
  files: dict[str, str] = {}
  for pattern in filter(None, (piece.strip() for piece in patterns.split(','))):
    pattern = os.path.expanduser(pattern)
    if os.path.isdir(pattern):
      raise ConfigError(f'data.paths: {pattern} is a directory: name its files, as in {os.path.join(pattern, "*.txt")}')
    found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    found = [path for path in found if not os.path.isdir(path)]
    if not found:
      raise ConfigError(f'data.paths: no file matches {pattern} in {os.getcwd()}: set a path or glob that matches one')
    for path in found:
      files.setdefault(os.path.realpath(path), path)
  if not files:
    raise ConfigError(f"data.paths={patterns!r} names no file: set paths or globs, as in 'books/*.txt'")
  return list(files.values())


def read_file(path: str, text_field: str) -> list[TextFile]:
  """Reads the text in a file, or in each member of a compressed file.

  Args:
    path: the file.
    text_field: the field of JSON records that contains the text.

  Raises:
    ConfigError: if the file is unreadable, is not text, or is empty.
  """
  files = []
  for name, content in decompress(path, read_regular_file('data.paths', path)):
    text, invalid_utf8 = to_utf8(name, content), None
    if is_json_lines(name):
      documents = json_line_texts(name, text, text_field)
    elif is_json(name):
      documents = json_texts(name, text, text_field)
    else:
      check_is_text(name, text)
      documents, invalid_utf8 = [text] if text else [], first_invalid_utf8(text)
    if not documents:
      raise _no_text(name)
    files.append(TextFile(name if name.startswith(path) else path, documents, invalid_utf8))
  if not files:
    raise _no_text(path)
  return files


def _no_text(path: str) -> ConfigError:
  return ConfigError(f'data.paths: {path} contains no text: remove it from data.paths')


def check_duplicates(files: Sequence[TextFile]) -> None:
  """Raises ConfigError if two files have the same text: text held out in one would be trained on in the other."""
  paths: dict[bytes, str] = {}
  for file in files:
    if file.size >= MIN_DUPLICATE:
      digest = hashlib.sha256(b'\n'.join(file.documents)).digest()
      if digest in paths:
        raise ConfigError(
          f'data.paths: {paths[digest]} and {file.path} have the same text, so text held out in one would be '
          'trained on in the other: remove one of them'
        )
      paths[digest] = file.path


def check_encodings(files: Sequence[TextFile], tokenizer: str) -> None:
  """Raises ConfigError if there is a tokenizer and a file is not valid UTF-8; without a tokenizer, logs a warning."""
  invalid = [file for file in files if file.invalid_utf8 is not None]
  if invalid and tokenizer:
    raise ConfigError(
      f'data.tokenizer needs UTF-8, and {invalid[0].path} is not valid UTF-8 (byte {invalid[0].invalid_utf8:,}): '
      'convert it, for example with iconv -f WINDOWS-1252 -t UTF-8, or train on bytes, without a tokenizer'
    )
  if invalid:
    more = f' and {len(invalid) - 1} other file(s)' if len(invalid) > 1 else ''
    logging.warning('%s%s: not valid UTF-8; training on the bytes as they are', invalid[0].path, more)
