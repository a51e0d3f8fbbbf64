"""Text with a byte-order mark is decoded, and files that are not text are refused, regardless of their names."""

import io
import pickle
import sqlite3
import tarfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.config import ConfigError, DataConfig
from training.data import documents, text_detection

VERSE = 'In the beginning — εν αρχῇ — въ началѣ 😀\r\n'


@pytest.fixture
def read(tmp_path):
  def of(content: bytes, name: str = 'a.txt', **fields) -> bytes:
    (tmp_path / name).write_bytes(content)
    return b'\n'.join(documents.read_documents(DataConfig(task='files', paths=str(tmp_path / name), **fields)))

  return of


@pytest.mark.parametrize(
  'encoding', ['utf-8', 'utf-8-sig', 'utf-16', 'utf-32', 'utf-16-le', 'utf-16-be', 'utf-32-le', 'utf-32-be']
)
def test_text_with_a_byte_order_mark_is_decoded(read, encoding):
  mark = '\ufeff' if encoding[-3:] in ('-le', '-be') else ''
  assert read((mark + VERSE).encode(encoding)) == VERSE.encode()


@pytest.mark.parametrize('encoding', ['utf-16-le', 'utf-16-be', 'utf-32-le', 'utf-32-be'])
def test_without_a_byte_order_mark_the_encoding_is_reported_not_assumed(read, encoding):
  name = encoding.upper().replace('-', '', 1).replace('16-', '16').replace('32-', '32')
  name = f'UTF-{name[3:]}'
  with pytest.raises(
    ConfigError, match=f'looks like {name} text without a byte-order mark: .*iconv -f {name} -t UTF-8$'
  ):
    read(('In the beginning\n' * 20).encode(encoding))


def test_json_lines_may_have_a_byte_order_mark(read):
  line = '{"text": "въ началѣ"}\n'
  for encoding in ('utf-8-sig', 'utf-16', 'utf-32'):
    assert read(line.encode(encoding), 'a.jsonl') == 'въ началѣ'.encode()


def archive() -> bytes:
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode='w') as tar:
    tar.addfile(tarfile.TarInfo('a.txt'))
  return file.getvalue()


def array() -> bytes:
  file = io.BytesIO()
  np.save(file, np.arange(3))
  return file.getvalue()


def database() -> bytes:
  connection = sqlite3.connect(':memory:')
  connection.execute('CREATE TABLE t (a)')
  content = connection.serialize()
  connection.close()
  return content


NOISE = np.random.default_rng(0).integers(1, 256, 5000, np.uint8).tobytes()


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'%PDF-1.7\nno NUL here', 'is a PDF document, not text: extract its text, for example with pdftotext'),
    (b'\x89PNG\r\n\x1a\n', 'is an image'),
    (b'\xff\xd8\xff\xe0', 'is an image'),
    (b'GIF89a', 'is an image'),
    (b'RIFF1234WAVEfmt ', 'is audio'),
    (b'1234ftypisom', 'is video'),
    (database(), 'is an SQLite database'),
    (b'PAR1xx', 'is a Parquet file'),
    (array(), 'is a NumPy array'),
    (pickle.dumps({'text': 'x'}), 'is a pickle'),
    (b'\x7fELF', 'is a program'),
    (archive(), 'is a tar archive, not text: extract it'),
    (b'!<arch>\ndebian', 'is an ar archive'),
    (b'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1', 'is an Office document'),
    (b'version https://git-lfs.github.com/spec/v1\noid sha256:0\n', 'is a Git LFS pointer file, .*: run git lfs pull'),
    (b'text\0text', r'contains NUL bytes \(the first at offset 4\), so it is not text'),
    (b'BM' + bytes(50), 'contains NUL bytes'),
    ('text'.encode('utf-16') + b'x', r'has the byte-order mark of UTF-16, but is not .* \(truncated data, byte 10\)'),
    ('text\0'.encode('utf-16'), 'contains NUL bytes'),
    ('text'.encode('utf-16')[:-1] + b'\xd8', 'has the byte-order mark of UTF-16, but is not valid in that encoding'),
    (NOISE, r'is not text: 1[01]% of its bytes are control characters'),
    (NOISE.translate(None, bytes(range(1, 9))), 'is not text: .* control characters'),
    (b'\xef\xbb\xbf', 'contains no text'),
    ('\ufeff'.encode('utf-16-le'), 'contains no text'),
  ],
)  # fmt: skip
@pytest.mark.parametrize('name', ['a.txt', 'a'])
def test_content_that_is_not_text_is_refused(read, name, content, message):
  with pytest.raises(ConfigError, match=rf'^data\.paths: .*{message}') as error:
    read(content, name)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'content',
  [
    b'a,b\n1,2\n',
    b'<html><body>text</body></html>',
    b'\x1b[31mred\x1b[0m ' * 20,
    b'N\bNA\bAM\bME\bE\n',
    b'page\x0cpage',
    b'REM\r\n\x1a',
    b'BZh is not a signature',
    b'PK is not a signature',
    b'one\rtwo',
    '日本語'.encode(),
  ],
)
def test_text_is_read_unchanged(read, content):
  assert read(content) == content


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters='\0\ufeff', exclude_categories=['Cc', 'Cs']), min_size=1))
def test_unicode_text_is_detected_as_text(content):
  if not any(content.encode().startswith(s.magic, s.start) for s in text_detection.SIGNATURES):
    assert text_detection.to_utf8('a', content.encode()) == content.encode()
  text_detection.check_is_text('a', content.encode())
  assert text_detection.first_invalid_utf8(content.encode()) is None


@settings(deadline=None)
@given(st.binary(max_size=40), st.integers(1, 8))
def test_the_first_byte_that_is_not_valid_utf8_is_found(content, chunk):
  try:
    content.decode()
    expected = None
  except UnicodeDecodeError as error:
    expected = error.start
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(text_detection, 'CHUNK', chunk)
    assert text_detection.first_invalid_utf8(content) == expected


def test_another_encoding_is_read_as_bytes_with_a_warning_and_refused_with_a_tokenizer(read, monkeypatch):
  warnings = []
  monkeypatch.setattr(documents.logging, 'warning', lambda message, *values: warnings.append(message % values))
  content = 'naïve\n'.encode('latin-1')
  assert read(content) == content
  assert [message.partition('a.txt')[2] for message in warnings] == [
    ': not valid UTF-8; training on the bytes as they are'
  ]
  with pytest.raises(ConfigError, match=r'^data\.tokenizer needs UTF-8, and .*a\.txt is not .* \(byte 2\): .*iconv'):
    read(content, tokenizer='any.json')


def test_a_pickled_pandas_table_is_refused(read, tmp_path):
  pd.DataFrame({'text': ['one']}).to_pickle(tmp_path / 'a.pkl')
  with pytest.raises(ConfigError, match='is a pickle'):
    b'\n'.join(documents.read_documents(DataConfig(task='files', paths=str(tmp_path / 'a.pkl'))))
