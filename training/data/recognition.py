"""Tells text from what is none by its content, and brings what is text into UTF-8."""

import codecs
from typing import NamedTuple

from training.config import ConfigError


class Signature(NamedTuple):
  """What files of a kind hold at a place: they are no text, or are not yet."""

  what: str
  start: int
  magic: tuple[bytes, ...]
  remedy: str = 'name a text file'


SIGNATURES = (
  Signature('a PDF document', 0, (b'%PDF-',), 'extract its text, as with pdftotext'),
  Signature('an image', 0, (b'\x89PNG', b'\xff\xd8\xff', b'GIF87a', b'GIF89a', b'II*\0', b'MM\0*', b'P5\n', b'P6\n')),
  Signature('audio or video', 0, (b'OggS', b'fLaC', b'ID3\3', b'ID3\4', b'\x1aE\xdf\xa3')),
  Signature('audio, video or an image', 8, (b'WAVEfmt ', b'AVI LIST', b'WEBPVP8')),
  Signature('video', 4, (b'ftyp',)),
  Signature('an SQLite database', 0, (b'SQLite format 3\0',), 'export its text as .jsonl'),
  Signature('a Parquet file', 0, (b'PAR1',), 'export its text as .jsonl, as with pandas'),
  Signature('an Arrow file', 0, (b'ARROW1', b'FEA1'), 'export its text as .jsonl, as with pandas'),
  Signature('an Avro or ORC file', 0, (b'Obj\x01', b'ORC\n'), 'export its text as .jsonl'),
  Signature('an HDF5 file', 0, (b'\x89HDF\r\n',), 'export its text as .jsonl'),
  Signature('a NumPy array', 0, (b'\x93NUMPY',), 'give the text that it was made from'),
  Signature('a pickle', 0, tuple(bytes([0x80, version]) for version in range(2, 6)), 'export its text as .jsonl'),
  Signature('model weights', 0, (b'GGUF', b'GGML')),
  Signature('a program', 0, (b'\x7fELF', b'\xcf\xfa\xed\xfe', b'\xca\xfe\xba\xbe', b'\0asm')),
  Signature('an Office document', 0, (b'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1',), 'save it as plain text'),
  Signature('a tar archive', 257, (b'ustar',), 'unpack it (tar xf) and name its files'),
  Signature('an archive of ar', 0, (b'!<arch>\n',), 'unpack it (ar x) and name its files'),
  Signature('the pointer of a file that Git LFS has not fetched', 0, (b'version https://git-lfs',), 'run git lfs pull'),
)
MARKS = (  # of UTF-32 first: its little-endian mark begins as that of UTF-16 does
  (codecs.BOM_UTF8, 'utf-8'),
  (codecs.BOM_UTF32_LE, 'utf-32-le'),
  (codecs.BOM_UTF32_BE, 'utf-32-be'),
  (codecs.BOM_UTF16_LE, 'utf-16-le'),
  (codecs.BOM_UTF16_BE, 'utf-16-be'),
)
SAMPLE = 4096
WIDE = {  # bytes a character, and which of them are 0 and are not in text of ASCII for the most part
  'UTF-16LE': (2, (1,), 0),
  'UTF-16BE': (2, (0,), 1),
  'UTF-32LE': (4, (2, 3), 0),
  'UTF-32BE': (4, (0, 1), 3),
}
# What text does have: backspace (overstruck pages), tab, line ends, form feed, the DOS end of a file, escape (colours).
CONTROLS = bytes(sorted({*range(0x20), 0x7F} - set(b'\b\t\n\v\f\r\x1a\x1b')))
MOST_CONTROLS = 0.02  # of all bytes; of random ones, as of what is packed or encrypted, it is 0.1
CHUNK = 2**20


def to_utf8(name: str, content: bytes) -> bytes:
  """The text that begins with a byte-order mark as UTF-8 without one; other content as it is.

  Raises:
    ConfigError: if it is of a kind that is known by its first bytes and is no text, or not what its mark says.
  """
  for signature in SIGNATURES:
    if content.startswith(signature.magic, signature.start):
      raise ConfigError(f'data.paths: {name} is {signature.what}, and no text: {signature.remedy}')
  for mark, encoding in MARKS:
    if content.startswith(mark):
      if encoding == 'utf-8':
        return content[len(mark) :]
      try:
        return content[len(mark) :].decode(encoding).encode()
      except UnicodeDecodeError as error:
        raise ConfigError(
          f'data.paths: {name} begins as {encoding[:6].upper()} text does, and is none ({error.reason}, byte '
          f'{error.start + len(mark):,}): convert it to UTF-8, as with iconv'
        ) from None
  return content


def check_is_text(name: str, content: bytes) -> None:
  """Raises ConfigError if the content has what no text has: NUL bytes, or many control characters."""
  nul = content.find(0)
  if nul >= 0:
    wide = wide_encoding(content[:SAMPLE])
    if wide:
      raise ConfigError(
        f'data.paths: {name} seems to be {wide} text without a byte-order mark: convert it, as with '
        f'iconv -f {wide} -t UTF-8'
      )
    raise ConfigError(f'data.paths: {name} has NUL bytes (the first at {nul:,}), as no text does: name a text file')
  controls = len(content) - len(content.translate(None, CONTROLS))
  if controls > MOST_CONTROLS * len(content):
    raise ConfigError(
      f'data.paths: {name} is no text: {controls / len(content):.0%} of its bytes are control characters: '
      'name a text file'
    )


def wide_encoding(sample: bytes) -> str | None:
  """The encoding that has its NUL bytes where this sample has them: in every character of ASCII, at the same place."""
  for name, (width, empty, full) in WIDE.items():
    shares = [sample[place::width].count(0) / max(len(sample[place::width]), 1) for place in range(width)]
    if min(shares[place] for place in empty) > 0.5 and shares[full] < 0.1:
      return name
  return None


def first_not_utf8(content: bytes) -> int | None:
  """The place of the first byte that is not UTF-8, if there is one; decoded piece by piece."""
  decoder, view = codecs.getincrementaldecoder('utf-8')(), memoryview(content)
  for start in range(0, len(content), CHUNK):
    pending = len(decoder.getstate()[0])
    try:
      decoder.decode(view[start : start + CHUNK], final=start + CHUNK >= len(content))
    except UnicodeDecodeError as error:
      return start - pending + error.start
  return None
