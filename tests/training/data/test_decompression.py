"""Compressed files are recognised regardless of their names, and no compressed bytes are trained on."""

import bz2
import contextlib
import gzip
import io
import lzma
import struct
import zipfile

import numpy as np
import pytest

from training.config import ConfigError, DataConfig
from training.data import decompression
from training.data.documents import read_documents

NOISE = np.random.default_rng(0).integers(32, 126, 2**20, np.uint8).tobytes()
TEXT = b'In the beginning God created the heaven and the earth.\n' * 9


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w', method) as archive:
    for name, content in members:
      archive.writestr(name, content)
  return file.getvalue()


@pytest.fixture
def read(tmp_path):
  def of(name: str, content: bytes) -> bytes:
    (tmp_path / name).write_bytes(content)
    return b'\n'.join(read_documents(DataConfig(task='files', paths=str(tmp_path / name))))

  return of


@pytest.mark.parametrize(
  'content',
  [
    gzip.compress(TEXT),
    gzip.compress(TEXT[:99]) + gzip.compress(TEXT[99:]),
    lzma.compress(TEXT),
    lzma.compress(TEXT, lzma.FORMAT_ALONE),
    bz2.compress(TEXT),
    bz2.compress(TEXT, 1),
    zipped(('enwik8', TEXT)),
    zipped(('enwik8', TEXT), method=zipfile.ZIP_STORED),
    zipped(('enwik8', TEXT), method=zipfile.ZIP_BZIP2),
    zipped(('enwik8', TEXT), method=zipfile.ZIP_LZMA),
    zipped(('folder/', b''), ('__MACOSX/._enwik8', b'\0'), ('folder/.DS_Store', b'\0'), ('folder/enwik8', TEXT)),
    gzip.compress(zipped(('enwik8.xz', lzma.compress(TEXT)))),
  ],
)
@pytest.mark.parametrize('name', ['enwik8', 'a.txt', 'a.TXT.GZ', 'a.zip'])
def test_compression_is_detected_by_content_not_by_name(read, name, content):
  assert read(name, content) == TEXT


def test_the_members_of_a_zip_are_documents_in_the_order_of_the_zip(read):
  lines = b'{"text": "one"}\n{"text": "two"}\n'
  assert read('a.zip', zipped(('b.txt', b'b'), ('a.JSONL', lines), ('c.ndjson.gz', gzip.compress(lines)))) == (
    b'b\none\ntwo\none\ntwo'
  )


@pytest.mark.parametrize(
  ('name', 'compress'), [('a.jsonl.xz', lzma.compress), ('a.ndjson.BZ2', bz2.compress), ('a.JSON.gz', gzip.compress)]
)
def test_the_name_without_the_suffix_determines_the_kind_of_content(read, name, compress):
  assert read(name, compress(b'{"text": "one"}')) == b'one'


def encrypted() -> bytes:
  content = bytearray(zipped(('a.txt', TEXT)))
  for offset in (6, content.index(b'PK\x01\x02') + 8):  # the flags in the member's header and in the directory
    content[offset] |= 1
  return bytes(content)


def with_unsupported_method() -> bytes:
  content = bytearray(zipped(('a.txt', TEXT)))
  for offset in (8, content.index(b'PK\x01\x02') + 10):
    content[offset : offset + 2] = struct.pack('<H', 9)  # deflate64
  return bytes(content)


def nested(depth: int) -> bytes:
  content = TEXT
  for _ in range(depth):
    content = gzip.compress(content)
  return content


@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    ('a.gz', gzip.compress(TEXT)[:-9], r'a\.gz is not an intact gzip file'),
    ('a.gz', gzip.compress(TEXT) + b'more', r'a\.gz is not an intact gzip file'),
    ('a.xz', lzma.compress(TEXT)[:-9], r'a\.xz is not an intact xz file'),
    ('a.xz', lzma.compress(TEXT)[:30] + b'\xff' * 9, r'a\.xz is not an intact xz file'),
    ('a', bz2.compress(TEXT)[:-9], r'a is not an intact bzip2 file'),
    ('a', bz2.compress(TEXT)[:20] + b'\xff' * 9, r'a is not an intact bzip2 file'),
    ('a.zip', zipped(('a.txt', TEXT))[:-9], r'a\.zip is not an intact zip file'),
    ('a.zip', zipped(('a.txt', TEXT)).replace(TEXT[:9], b'otherwise'), None),
    ('a.zip', zipped(('a.txt', TEXT), method=0).replace(TEXT[:9], b'otherwise'), r'a\.zip is not an intact zip file'),
    ('a.zip', TEXT, r'a\.zip is not an intact zip file'),
    ('a.XZ', TEXT, r'a\.XZ is not an intact xz file'),
    ('a.zst', TEXT, r'a\.zst is not an intact zstd file'),
    ('a.gz', b'\x1f', r'a\.gz is not an intact gzip file'),
    ('a.zip', zipped(), r'a\.zip contains no text: remove it from data\.paths'),
    ('a.zip', zipped(('folder/', b'')), r'a\.zip contains no text: remove it from data\.paths'),
    ('a.zip', zipped(('a', TEXT), ('b', b'')), r'a\.zip:b contains no text: remove it from data\.paths'),
    ('a.gz', gzip.compress(b''), r'/a contains no text: remove it from data\.paths'),
    ('a.zip', zipped(('a', TEXT), ('b', b'\x89PNG\r\n')), r'a\.zip:b is an image, not text'),
    ('a.zip', encrypted(), r'a\.zip:a\.txt is encrypted: decrypt it first'),
    (
      'a.zip',
      with_unsupported_method(),
      r'a\.zip uses a compression method that is not supported: decompress',
    ),
    ('a', zipped(('[Content_Types].xml', b'<x/>')), r'a is an Office document, not text: save it as plain text'),
    ('a.epub', zipped(('mimetype', b'x'), ('a', TEXT)), r'a\.epub is an OpenDocument or EPUB document'),
    ('a', b'\x28\xb5\x2f\xfd\0', r'a is compressed with zstd, which is not supported: run unzstd on it'),
    ('a', b'7z\xbc\xaf\x27\x1c\0', r'a is compressed with 7z, which is not supported: run 7z x on it'),
    ('a.gz', nested(5), r'is compressed more than 4 times: decompress it first'),
  ],
)
def test_a_file_that_cannot_be_decompressed_is_refused(read, name, content, message):
  if message is None:  # the bytes to replace do not occur in the compressed data
    assert read(name, content) == TEXT
    return
  with pytest.raises(ConfigError, match=rf'^data\.paths: .*{message}') as error:
    read(name, content)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'compress',
  [gzip.compress, lzma.compress, bz2.compress, lambda text: zipped(('a', text))],
  ids=['gz', 'xz', 'bz2', 'zip'],
)
def test_a_damaged_file_is_refused_or_still_has_the_text(read, compress):
  intact = compress(TEXT)
  for offset in range(len(intact)):
    damaged = bytearray(intact)
    damaged[offset] ^= 0x55
    with contextlib.suppress(ConfigError):
      assert read('a', bytes(damaged)) == TEXT


@pytest.mark.parametrize('compress', [gzip.compress, lzma.compress, bz2.compress, lambda text: zipped(('a', text))])
def test_a_decompression_bomb_is_refused_early(read, compress, monkeypatch):
  monkeypatch.setattr(decompression, 'SMALL', 2**20)
  decompressed, add = [], decompression._Limit.add
  monkeypatch.setattr(decompression._Limit, 'add', lambda self, count: (decompressed.append(count), add(self, count)))
  with pytest.raises(ConfigError, match=r'a decompresses to more than 250 times its size, which text never does'):
    read('a', compress(b'A' * 2**25))
  assert sum(decompressed) < 2**24


def test_the_size_limit_is_of_all_members_of_a_zip_together(read, monkeypatch):
  monkeypatch.setattr(decompression, 'SMALL', 2**20)
  with pytest.raises(ConfigError, match=r'a decompresses to more than 250 times its size'):
    read('a', zipped(*((str(k), b'A' * 2**18) for k in range(9))))


def test_a_text_that_does_not_fit_in_memory_is_refused(read, monkeypatch):
  monkeypatch.setattr(decompression, 'SMALL', 2**18)
  monkeypatch.setattr(decompression, 'free_memory', lambda: 2**21)
  with pytest.raises(
    ConfigError, match=r'a has at least 0\.0 GiB of text, which needs 4 times as much memory, but only 0\.0'
  ):
    read('a', gzip.compress(NOISE))


def test_a_short_text_may_be_arbitrarily_repetitive(read):
  assert read('a.xz', lzma.compress(b'word ' * 100_000)) == b'word ' * 100_000
