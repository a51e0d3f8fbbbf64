"""Unpacks what a user's file is packed in, recognised by its first bytes, whatever its name; bounded."""

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
from training.data.reading import SMALL, check_size

CHUNK = 2**20
# Text shrinks to a third or a tenth, the most repetitive logs to a hundredth. What grows more than this is made to.
LARGEST_RATIO = 250
DEEPEST = 4  # packed within packed
FAULTS = (  # of damaged files, from all the unpackers below
  gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile, EOFError, OSError, ValueError, struct.error,
  OverflowError, IndexError, KeyError, RuntimeError, MemoryError,
)  # fmt: skip


class Packer(NamedTuple):
  """A kind of packed file.

  Attributes:
    name: of the kind.
    suffix: what its names end with.
    magic: what its files begin with, any of these.
    open: reads the one stream in it; None: it is read otherwise, or not here.
    remedy: the command that unpacks what is not read here.
  """

  name: str
  suffix: str
  magic: tuple[bytes, ...]
  open: Callable[[Any], IO[bytes]] | None = None
  remedy: str = ''


def _gzip(file: IO[bytes]) -> IO[bytes]:
  return cast(IO[bytes], gzip.GzipFile(fileobj=file))


PACKERS = (
  Packer('zip', '.zip', (b'PK\x03\x04', b'PK\x05\x06')),
  Packer('gzip', '.gz', (b'\x1f\x8b',), _gzip),
  Packer('xz', '.xz', (b'\xfd7zXZ\0',), lzma.LZMAFile),
  Packer('lzma', '.lzma', (b']\0\0',), lzma.LZMAFile),
  Packer('bzip2', '.bz2', tuple(b'BZh%d1AY&SY' % level for level in range(1, 10)), bz2.BZ2File),
  Packer('zstd', '.zst', (b'\x28\xb5\x2f\xfd',), remedy='unzstd'),
  Packer('LZ4', '.lz4', (b'\x04\x22\x4d\x18',), remedy='unlz4'),
  Packer('lzip', '.lz', (b'LZIP\x01',), remedy='lzip -d'),
  Packer('compress', '.z', (b'\x1f\x9d',), remedy='uncompress'),
  Packer('7z', '.7z', (b'7z\xbc\xaf\x27\x1c',), remedy='7z x'),
  Packer('RAR', '.rar', (b'Rar!\x1a\x07',), remedy='unrar x'),
)
OFFICE = {  # files that only documents in a zip have
  '[Content_Types].xml': 'an Office document',
  'mimetype': 'an OpenDocument or EPUB document',
  'META-INF/MANIFEST.MF': 'a Java archive',
}


def unpack(path: str, content: bytes) -> Iterator[tuple[str, bytes]]:
  """What a file holds: (name, content) of each file in it, in the archive's order; itself, if it is not packed.

  Args:
    path: the file's name; what is packed in it is called by the name without the packer's ending, or, in a zip,
      `path:member`.
    content: its bytes.

  Raises:
    ConfigError: if it is damaged, encrypted, packed in a way that is not read here, or grows beyond what text can.
  """
  yield from _unpack(path, content, _Limit(path, len(content)), DEEPEST)


class _Limit:
  """Counts what a file has been unpacked to, and refuses it once that is more than text comes to."""

  def __init__(self, path: str, packed_bytes: int):
    self.path, self.count = path, 0
    self.most = max(SMALL, LARGEST_RATIO * packed_bytes)  # a short text may repeat a word as often as it likes

  @functools.cached_property
  def memory(self) -> int:
    """What is free before most of it is unpacked."""
    return free_memory()

  def add(self, num_bytes: int) -> None:
    """Raises ConfigError if these bytes are too many."""
    self.count += num_bytes
    if self.count > self.most:
      raise ConfigError(
        f'data.paths: {self.path} unpacks to over {LARGEST_RATIO} times its size, as no text does: unpack it by hand '
        'if you trust it'
      )
    if self.count > SMALL:
      check_size('data.paths', self.path, self.count, self.memory)

  def read(self, stream: IO[bytes]) -> bytes:
    """All of a stream, piece by piece."""
    pieces = []
    while piece := stream.read(CHUNK):
      self.add(len(piece))
      pieces.append(piece)
    return b''.join(pieces)


def _unpack(name: str, content: bytes, limit: _Limit, depth: int) -> Iterator[tuple[str, bytes]]:
  packer = next((packer for packer in PACKERS if content.startswith(packer.magic)), None)
  if packer is None:
    named = next((packer for packer in PACKERS if name.lower().endswith(packer.suffix)), None)
    if named:
      raise ConfigError(f'data.paths: {name} is not a whole {named.name} file: make it again, or rename it')
    yield name, content
    return
  if packer.remedy:
    raise ConfigError(f'data.paths: {name} is packed with {packer.name}, which is not read here: {packer.remedy} it')
  if not depth:
    raise ConfigError(f'data.paths: {name} is packed more than {DEEPEST} times: unpack it first')
  try:
    if packer.open is None:
      members = list(_zip_members(name, content, limit))
    else:
      with packer.open(io.BytesIO(content)) as stream:
        members = [(plain_name(name), limit.read(stream))]
  except ConfigError:  # it is a ValueError
    raise
  except NotImplementedError:  # of zipfile, for some of zip's methods
    raise ConfigError(f'data.paths: {name} is packed in a way that is not read here: unpack it first') from None
  except FAULTS as error:
    raise ConfigError(
      f'data.paths: {name} is not a whole {packer.name} file ({error}): make it again, or rename it'
    ) from None
  for member, unpacked in members:
    yield from _unpack(member, unpacked, limit, depth - 1)


def _zip_members(name: str, content: bytes, limit: _Limit) -> Iterator[tuple[str, bytes]]:
  """Each file in a zip but those that macOS adds."""
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    for typical, kind in OFFICE.items():
      if typical in archive.namelist():
        raise ConfigError(f'data.paths: {name} is {kind}, and no text: save it as plain text')
    for member in archive.infolist():
      label = f'{name}:{member.filename}'
      if member.is_dir() or member.filename.startswith('__MACOSX/') or member.filename.endswith('.DS_Store'):
        continue
      if member.flag_bits & 1:
        raise ConfigError(f'data.paths: {label} is encrypted: unpack it first')
      with archive.open(member) as stream:
        yield label, limit.read(stream)


def plain_name(name: str) -> str:
  """A name without the ending that its packer gives it: enwik8 for enwik8.gz."""
  suffix = next((packer.suffix for packer in PACKERS if name.lower().endswith(packer.suffix)), '')
  return name.removesuffix(name[len(name) - len(suffix) :])
