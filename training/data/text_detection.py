"""Detects by its content whether a file is text, and decodes UTF-16 and UTF-32 with a byte-order mark."""

import codecs
from typing import NamedTuple

from training.config import ConfigError


class Signature(NamedTuple):
  """The bytes at a fixed offset that identify a file format other than plain text.

  Attributes:
    kind: the format, for messages.
    start: the offset.
    magic: the alternatives for these bytes.
    remedy: what the user can do instead.
  """

  kind: str
  start: int
  magic: tuple[bytes, ...]
  remedy: str = 'name a text file'


SIGNATURES = (
  Signature('a PDF document', 0, (b'%PDF-',), 'extract its text, for example with pdftotext'),
  Signature('an image', 0, (b'\x89PNG', b'\xff\xd8\xff', b'GIF87a', b'GIF89a', b'II*\0', b'MM\0*', b'P5\n', b'P6\n')),
  Signature('audio or video', 0, (b'OggS', b'fLaC', b'ID3\3', b'ID3\4', b'\x1aE\xdf\xa3')),
  Signature('audio, video or an image', 8, (b'WAVEfmt ', b'AVI LIST', b'WEBPVP8')),
  Signature('video', 4, (b'ftyp',)),
  Signature('an SQLite database', 0, (b'SQLite format 3\0',), 'export its text as .jsonl'),
  Signature('a Parquet file', 0, (b'PAR1',), 'export its text as .jsonl, for example with pandas'),
  Signature('an Arrow file', 0, (b'ARROW1', b'FEA1'), 'export its text as .jsonl, for example with pandas'),
  Signature('an Avro or ORC file', 0, (b'Obj\x01', b'ORC\n'), 'export its text as .jsonl'),
  Signature('an HDF5 file', 0, (b'\x89HDF\r\n',), 'export its text as .jsonl'),
  Signature('a NumPy array', 0, (b'\x93NUMPY',), 'name the text that it was created from'),
  Signature('a pickle', 0, tuple(bytes([0x80, version]) for version in range(2, 6)), 'export its text as .jsonl'),
  Signature('model weights', 0, (b'GGUF', b'GGML')),
  Signature('a program', 0, (b'\x7fELF', b'\xcf\xfa\xed\xfe', b'\xca\xfe\xba\xbe', b'\0asm')),
  Signature('an Office document', 0, (b'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1',), 'save it as plain text'),
  Signature('a tar archive', 257, (b'ustar',), 'extract it (tar xf) and name its files'),
  Signature('an ar archive', 0, (b'!<arch>\n',), 'extract it (ar x) and name its files'),
  Signature('a Git LFS pointer file', 0, (b'version https://git-lfs',), 'run git lfs pull'),
)
BYTE_ORDER_MARKS = (  # UTF-32 before UTF-16: the little-endian mark of UTF-32 begins with that of UTF-16
  (codecs.BOM_UTF8, 'utf-8'),
  (codecs.BOM_UTF32_LE, 'utf-32-le'),
  (codecs.BOM_UTF32_BE, 'utf-32-be'),
  (codecs.BOM_UTF16_LE, 'utf-16-le'),
  (codecs.BOM_UTF16_BE, 'utf-16-be'),
)
SAMPLE = 4096
WIDE = {  # encoding -> bytes per character; in ASCII text, the indices of bytes that are 0, and of one that is not
  'UTF-16LE': (2, (1,), 0),
  'UTF-16BE': (2, (0,), 1),
  'UTF-32LE': (4, (2, 3), 0),
  'UTF-32BE': (4, (0, 1), 3),
}
# All control characters except those that occur in text: backspace (for overstriking), tab, line breaks, form feed, the
# DOS end of file, and escape (for colours).
CONTROLS = bytes(sorted({*range(0x20), 0x7F} - set(b'\b\t\n\v\f\r\x1a\x1b')))
MAX_CONTROLS = 0.02  # as a share of all bytes; of random bytes (compressed or encrypted data) it is 0.1
CHUNK = 2**20


def to_utf8(name: str, content: bytes) -> bytes:
  """Converts content with a byte-order mark to UTF-8 without one; returns other content unchanged.

  Args:
    name: the file, for messages.
    content: its bytes.

  Raises:
    ConfigError: if the content has the signature of another format, or is not valid in the encoding of its byte-order
      mark.
  """
  for signature in SIGNATURES:
    if content.startswith(signature.magic, signature.start):
      raise ConfigError(f'data.paths: {name} is {signature.kind}, not text: {signature.remedy}')
  for mark, encoding in BYTE_ORDER_MARKS:
    if content.startswith(mark):
      if encoding == 'utf-8':
        return content[len(mark) :]
      try:
        return content[len(mark) :].decode(encoding).encode()
      except UnicodeDecodeError as error:
        raise ConfigError(
          f'data.paths: {name} has the byte-order mark of {encoding[:6].upper()}, but is not valid in that encoding '
          f'({error.reason}, byte {error.start + len(mark):,}): convert it to UTF-8, for example with iconv'
        ) from None
  return content


def check_is_text(name: str, content: bytes) -> None:
  """Raises ConfigError if the content is not text: it has NUL bytes, or many control characters."""
  nul = content.find(0)
  if nul >= 0:
    wide = wide_encoding(content[:SAMPLE])
    if wide:
      raise ConfigError(
        f'data.paths: {name} looks like {wide} text without a byte-order mark: convert it with iconv -f {wide} -t UTF-8'
      )
    raise ConfigError(
      f'data.paths: {name} contains NUL bytes (the first at offset {nul:,}), so it is not text: name a text file'
    )
  controls = len(content) - len(content.translate(None, CONTROLS))
  if controls > MAX_CONTROLS * len(content):
    raise ConfigError(
      f'data.paths: {name} is not text: {controls / len(content):.0%} of its bytes are control characters: '
      'name a text file'
    )


def wide_encoding(sample: bytes) -> str | None:
  """Detects UTF-16 or UTF-32 by where the NUL bytes are: at the same index of every ASCII character."""
  for encoding, (width, zero, nonzero) in WIDE.items():
    zeros = [sample[index::width].count(0) / max(len(sample[index::width]), 1) for index in range(width)]
    if min(zeros[index] for index in zero) > 0.5 and zeros[nonzero] < 0.1:
      return encoding
  return None


def first_invalid_utf8(content: bytes) -> int | None:
  """Returns the offset of the first byte that is not valid UTF-8, or None; decodes chunk by chunk."""
  decoder, view = codecs.getincrementaldecoder('utf-8')(), memoryview(content)
  for start in range(0, len(content), CHUNK):
    pending = len(decoder.getstate()[0])
    try:
      decoder.decode(view[start : start + CHUNK], final=start + CHUNK >= len(content))
    except UnicodeDecodeError as error:
      return start - pending + error.start
  return None
