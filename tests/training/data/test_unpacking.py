"""That what is packed is read, whatever its name, and that nothing packed is trained on as it is."""

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
from training.data import unpacking
from training.data.text import read_documents

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
def test_what_is_packed_is_told_by_its_content(read, name, content):
  assert read(name, content) == TEXT


def test_the_files_of_a_zip_are_documents_in_its_order(read):
  lines = b'{"text": "one"}\n{"text": "two"}\n'
  assert read('a.zip', zipped(('b.txt', b'b'), ('a.JSONL', lines), ('c.ndjson.gz', gzip.compress(lines)))) == (
    b'b\none\ntwo\none\ntwo'
  )


@pytest.mark.parametrize(
  ('name', 'pack'), [('a.jsonl.xz', lzma.compress), ('a.ndjson.BZ2', bz2.compress), ('a.JSON.gz', gzip.compress)]
)
def test_a_packed_name_says_what_is_in_it(read, name, pack):
  assert read(name, pack(b'{"text": "one"}')) == b'one'


def encrypted() -> bytes:
  content = bytearray(zipped(('a.txt', TEXT)))
  for place in (6, content.index(b'PK\x01\x02') + 8):  # the flags, in the file's header and in the directory
    content[place] |= 1
  return bytes(content)


def of_an_unknown_method() -> bytes:
  content = bytearray(zipped(('a.txt', TEXT)))
  for place in (8, content.index(b'PK\x01\x02') + 10):
    content[place : place + 2] = struct.pack('<H', 9)  # deflate64
  return bytes(content)


def nested(depth: int) -> bytes:
  content = TEXT
  for _ in range(depth):
    content = gzip.compress(content)
  return content


@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    ('a.gz', gzip.compress(TEXT)[:-9], r'a\.gz is not a whole gzip file'),
    ('a.gz', gzip.compress(TEXT) + b'more', r'a\.gz is not a whole gzip file'),
    ('a.xz', lzma.compress(TEXT)[:-9], r'a\.xz is not a whole xz file'),
    ('a.xz', lzma.compress(TEXT)[:30] + b'\xff' * 9, r'a\.xz is not a whole xz file'),
    ('a', bz2.compress(TEXT)[:-9], r'a is not a whole bzip2 file'),
    ('a', bz2.compress(TEXT)[:20] + b'\xff' * 9, r'a is not a whole bzip2 file'),
    ('a.zip', zipped(('a.txt', TEXT))[:-9], r'a\.zip is not a whole zip file'),
    ('a.zip', zipped(('a.txt', TEXT)).replace(TEXT[:9], b'otherwise'), None),
    ('a.zip', zipped(('a.txt', TEXT), method=0).replace(TEXT[:9], b'otherwise'), r'a\.zip is not a whole zip file'),
    ('a.zip', TEXT, r'a\.zip is not a whole zip file'),
    ('a.XZ', TEXT, r'a\.XZ is not a whole xz file'),
    ('a.zst', TEXT, r'a\.zst is not a whole zstd file'),
    ('a.gz', b'\x1f', r'a\.gz is not a whole gzip file'),
    ('a.zip', zipped(), r'a\.zip holds no text: leave it out'),
    ('a.zip', zipped(('folder/', b'')), r'a\.zip holds no text: leave it out'),
    ('a.zip', zipped(('a', TEXT), ('b', b'')), r'a\.zip:b holds no text: leave it out'),
    ('a.gz', gzip.compress(b''), r'/a holds no text: leave it out'),
    ('a.zip', zipped(('a', TEXT), ('b', b'\x89PNG\r\n')), r'a\.zip:b is an image, and no text'),
    ('a.zip', encrypted(), r'a\.zip:a\.txt is encrypted: unpack it first'),
    ('a.zip', of_an_unknown_method(), r'a\.zip is packed in a way that is not read here: unpack it first'),
    ('a', zipped(('[Content_Types].xml', b'<x/>')), r'a is an Office document, and no text: save it as plain text'),
    ('a.epub', zipped(('mimetype', b'x'), ('a', TEXT)), r'a\.epub is an OpenDocument or EPUB document'),
    ('a', b'\x28\xb5\x2f\xfd\0', r'a is packed with zstd, which is not read here: unzstd it'),
    ('a', b'7z\xbc\xaf\x27\x1c\0', r'a is packed with 7z, which is not read here: 7z x it'),
    ('a.gz', nested(5), r'packed more than 4 times: unpack it first'),
  ],
)
def test_what_cannot_be_unpacked_is_named(read, name, content, message):
  if message is None:  # nothing was replaced in what is deflated
    assert read(name, content) == TEXT
    return
  with pytest.raises(ConfigError, match=rf'^data\.paths: .*{message}') as error:
    read(name, content)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'pack', [gzip.compress, lzma.compress, bz2.compress, lambda text: zipped(('a', text))], ids=['gz', 'xz', 'bz2', 'zip']
)
def test_no_damage_ends_in_anything_but_a_refusal_or_the_text(read, pack):
  whole = pack(TEXT)
  for place in range(len(whole)):
    damaged = bytearray(whole)
    damaged[place] ^= 0x55
    with contextlib.suppress(ConfigError):
      assert read('a', bytes(damaged)) == TEXT


@pytest.mark.parametrize('pack', [gzip.compress, lzma.compress, bz2.compress, lambda text: zipped(('a', text))])
def test_what_unpacks_without_end_is_refused_before_it_has(read, pack, monkeypatch):
  monkeypatch.setattr(unpacking, 'SMALL', 2**20)
  taken = []
  monkeypatch.setattr(
    unpacking._Limit, 'add', lambda self, count, add=unpacking._Limit.add: (taken.append(count), add(self, count))
  )
  with pytest.raises(ConfigError, match=r'a unpacks to over 250 times its size, as no text does'):
    read('a', pack(b'A' * 2**25))
  assert sum(taken) < 2**24


def test_files_of_a_zip_count_together(read, monkeypatch):
  monkeypatch.setattr(unpacking, 'SMALL', 2**20)
  with pytest.raises(ConfigError, match=r'a unpacks to over 250 times its size'):
    read('a', zipped(*((str(k), b'A' * 2**18) for k in range(9))))


def test_what_memory_cannot_hold_is_refused(read, monkeypatch):
  monkeypatch.setattr(unpacking, 'SMALL', 2**18)
  monkeypatch.setattr(unpacking, 'free_memory', lambda: 2**21)
  with pytest.raises(
    ConfigError, match=r'a has 0\.0 GiB of text or more, which takes 4 times as much memory, and 0\.0'
  ):
    read('a', gzip.compress(NOISE))


def test_a_word_may_be_repeated_in_a_short_text(read):
  assert read('a.xz', lzma.compress(b'word ' * 100_000)) == b'word ' * 100_000
