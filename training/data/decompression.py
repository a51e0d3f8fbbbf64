"""Decompresses gzip, xz, bzip2 and zip files, recognised by their first bytes, up to a size limit."""

import bz2
import functools
import gzip
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple, cast

from training.config import ConfigError
from training.data.free_memory import free_memory
from training.data.regular_files import SMALL, check_fits_in_memory

CHUNK = 2**20
# Text compresses by a factor of 3 to 10, the most repetitive logs by 100. More than this is a decompression bomb.
MAX_RATIO = 250
MAX_DEPTH = 4  # of compressed files within compressed files
DAMAGED = (  # the exceptions that the decompressors below raise for damaged files
  gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile, EOFError, OSError, ValueError, struct.error,
  OverflowError, IndexError, KeyError, RuntimeError, MemoryError,
)  # fmt: skip


class Format(NamedTuple):
  """A format of compressed files.

  Attributes:
    name: for messages.
    suffix: the suffix of its file names.
    magic: the alternatives for the first bytes of its files.
    open: opens its single stream for reading; None for zip, which has several members, and for unsupported formats.
    remedy: for an unsupported format, the command that decompresses it.
  """

  name: str
  suffix: str
  magic: tuple[bytes, ...]
  open: Callable[[Any], IO[bytes]] | None = None
  remedy: str = ''


def _gzip(file: IO[bytes]) -> IO[bytes]:
  return cast(IO[bytes], gzip.GzipFile(fileobj=file))


FORMATS = (
  Format('zip', '.zip', (b'PK\x03\x04', b'PK\x05\x06')),
  Format('gzip', '.gz', (b'\x1f\x8b',), _gzip),
  Format('xz', '.xz', (b'\xfd7zXZ\0',), lzma.LZMAFile),
  Format('lzma', '.lzma', (b']\0\0',), lzma.LZMAFile),
  Format('bzip2', '.bz2', tuple(b'BZh%d1AY&SY' % level for level in range(1, 10)), bz2.BZ2File),
  Format('zstd', '.zst', (b'\x28\xb5\x2f\xfd',), remedy='unzstd'),
  Format('LZ4', '.lz4', (b'\x04\x22\x4d\x18',), remedy='unlz4'),
  Format('lzip', '.lz', (b'LZIP\x01',), remedy='lzip -d'),
  Format('compress', '.z', (b'\x1f\x9d',), remedy='uncompress'),
  Format('7z', '.7z', (b'7z\xbc\xaf\x27\x1c',), remedy='7z x'),
  Format('RAR', '.rar', (b'Rar!\x1a\x07',), remedy='unrar x'),
)
DOCUMENTS = {  # member of a zip -> the document format that it is typical of
  '[Content_Types].xml': 'an Office document',
  'mimetype': 'an OpenDocument or EPUB document',
  'META-INF/MANIFEST.MF': 'a Java archive',
}


def decompress(path: str, content: bytes) -> Iterator[tuple[str, bytes]]:
  """Yields (name, content) of each file in a compressed file, in the archive's order, or of the file itself.

  Args:
    path: the file's name. A decompressed file has the name without the format's suffix; a member of a zip is named
      `path:member`.
    content: the file's bytes.

  Raises:
    ConfigError: if the file is damaged, encrypted, in an unsupported format, or expands by more than text does.
  """
  yield from _decompress(path, content, _Limit(path, len(content)), MAX_DEPTH)


class _Limit:
  """Counts the decompressed bytes of a file, and raises an error if there are more than text would decompress to."""

  def __init__(self, path: str, compressed_bytes: int):
    self.path, self.count = path, 0
    self.max_bytes = max(SMALL, MAX_RATIO * compressed_bytes)  # a short text may be arbitrarily repetitive

  @functools.cached_property
  def memory(self) -> int:
    """The memory that is free when the count first exceeds SMALL, before most of the file is decompressed."""
    return free_memory()

  def add(self, num_bytes: int) -> None:
    """Adds to the count. Raises ConfigError if it is now too large."""
    self.count += num_bytes
    if self.count > self.max_bytes:
      raise ConfigError(
        f'data.paths: {self.path} decompresses to more than {MAX_RATIO} times its size, which text never does: '
        'decompress it yourself if you trust it'
      )
    if self.count > SMALL:
      check_fits_in_memory('data.paths', self.path, self.count, self.memory)

  def read(self, stream: IO[bytes]) -> bytes:
    """Reads a whole stream, chunk by chunk."""
    chunks = []
    while chunk := stream.read(CHUNK):
      self.add(len(chunk))
      chunks.append(chunk)
    return b''.join(chunks)


def _decompress(name: str, content: bytes, limit: _Limit, depth: int) -> Iterator[tuple[str, bytes]]:
  kind = next((kind for kind in FORMATS if content.startswith(kind.magic)), None)
  if kind is None:
    by_name = next((kind for kind in FORMATS if name.lower().endswith(kind.suffix)), None)
    if by_name:
      raise _not_intact(name, by_name)
    yield name, content
    return
  if kind.remedy:
    raise ConfigError(
      f'data.paths: {name} is compressed with {kind.name}, which is not supported: run {kind.remedy} on it'
    )
  if not depth:
    raise ConfigError(f'data.paths: {name} is compressed more than {MAX_DEPTH} times: decompress it first')
  try:
    if kind.open is None:
      members = list(_zip_members(name, content, limit))
    else:
      with kind.open(io.BytesIO(content)) as stream:
        members = [(without_suffix(name), limit.read(stream))]
  except ConfigError:  # a subclass of ValueError, which is in DAMAGED
    raise
  except NotImplementedError:  # raised by zipfile for compression methods that it does not support
    raise ConfigError(
      f'data.paths: {name} uses a compression method that is not supported: decompress it first'
    ) from None
  except DAMAGED as error:
    raise _not_intact(name, kind, f' ({error})') from None
  for member, decompressed in members:
    yield from _decompress(member, decompressed, limit, depth - 1)


def _not_intact(name: str, kind: Format, reason: str = '') -> ConfigError:
  return ConfigError(f'data.paths: {name} is not an intact {kind.name} file{reason}: create it again, or rename it')


def _zip_members(name: str, content: bytes, limit: _Limit) -> Iterator[tuple[str, bytes]]:
  """Yields (name, content) of each file in a zip, except those that macOS adds."""
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    for typical, document in DOCUMENTS.items():
      if typical in archive.namelist():
        raise ConfigError(f'data.paths: {name} is {document}, not text: save it as plain text')
    for member in archive.infolist():
      label = f'{name}:{member.filename}'
      if member.is_dir() or member.filename.startswith('__MACOSX/') or member.filename.endswith('.DS_Store'):
        continue
      if member.flag_bits & 1:
        raise ConfigError(f'data.paths: {label} is encrypted: decrypt it first')
      with archive.open(member) as stream:
        yield label, limit.read(stream)


def without_suffix(name: str) -> str:
  """Returns a name without the suffix of its compression format: enwik8 for enwik8.gz."""
  suffix = next((kind.suffix for kind in FORMATS if name.lower().endswith(kind.suffix)), '')
  return name.removesuffix(name[len(name) - len(suffix) :])
