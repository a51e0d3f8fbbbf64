import gzip
import json
import os
import pathlib
import zipfile

import pytest

from training.config import ConfigError, DataConfig
from training.data import documents


def read(paths: object, **settings) -> bytes:
  return b'\n'.join(documents.read_documents(DataConfig(task='files', paths=str(paths), **settings)))


def test_files_are_joined_in_the_order_of_the_patterns(tmp_path):
  for name in ('b.txt', 'a.txt', 'c.log', '[x].txt'):
    (tmp_path / name).write_text(name)
  (tmp_path / 'folder').mkdir()
  assert read(f'{tmp_path}/c.log, {tmp_path}/?.*,') == b'c.log\na.txt\nb.txt'
  assert read(f'{tmp_path}/[x].txt') == b'[x].txt'  # an existing path is not a glob
  assert read(f'{tmp_path}/**') == b'[x].txt\na.txt\nb.txt\nc.log'  # a glob skips directories


def test_a_file_that_several_patterns_match_is_read_once(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'a.txt').write_text('a')
  (tmp_path / 'link').symlink_to('a.txt')
  assert read(f'a.txt,./a.txt,link,{tmp_path}/a.txt,*') == b'a'


def test_files_with_the_same_text_are_refused(tmp_path):
  """Text must not be both trained on and held out."""
  (tmp_path / 'a').write_bytes(b'In the beginning' * 1024)
  (tmp_path / 'a.gz').write_bytes(gzip.compress(b'In the beginning' * 1024))
  with pytest.raises(ConfigError, match=r'/a and .*/a\.gz have the same text, .*: remove one of them$'):
    read(f'{tmp_path}/*')
  with zipfile.ZipFile(tmp_path / 'a.zip', 'w') as archive:
    for name in 'bc':
      archive.writestr(name, b'In the beginning' * 1024)
  with pytest.raises(ConfigError, match=r'/a\.zip:b and .*/a\.zip:c have the same text, '):
    read(f'{tmp_path}/a.zip')
  (tmp_path / 'a').write_bytes(b'short')
  (tmp_path / 'b').write_bytes(b'short')
  assert read(f'{tmp_path}/?') == b'short\nshort'


def test_a_file_name_that_is_not_utf8_is_refused(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  name = os.fsdecode(b'caf\xe9.txt')
  (tmp_path / name).write_text('text')
  for paths in (name, '*.txt'):
    with pytest.raises(ConfigError, match=r"the file name 'caf\\udce9\.txt' is not valid UTF-8: rename the file$"):
      read(paths)


LINES = b'{"text": "one\\ntwo", "body": "1"}\n\n{"text": "na\xc3\xafve"}\n'


@pytest.mark.parametrize(
  ('name', 'content', 'expected'),
  [
    ('a.txt', b'na\xefve: not UTF-8 \r\n', b'na\xefve: not UTF-8 \r\n'),
    ('enwik8', b'<xml>', b'<xml>'),
    ('a.jsonl', LINES, b'one\ntwo\nna\xc3\xafve'),
    ('a.jsonl', b'{"text": "\xff\\ud800"}', b'\xef\xbf\xbd?'),
    ('a.txt.gz', gzip.compress(b'zipped', mtime=0), b'zipped'),
    ('a.jsonl.gz', gzip.compress(LINES, mtime=0), b'one\ntwo\nna\xc3\xafve'),
  ],
)
def test_each_kind_of_file_is_read(tmp_path, name, content, expected):
  (tmp_path / name).write_bytes(content)
  assert read(tmp_path / name) == expected


def test_text_field_selects_the_field(tmp_path):
  (tmp_path / 'a.jsonl').write_text(json.dumps({'text': 'no', 'body': 'yes'}))
  assert read(tmp_path / 'a.jsonl', text_field='body') == b'yes'


@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    ('a.txt', b'', 'a.txt contains no text'),
    ('a.jsonl', b'\n\n', 'a.jsonl contains no text'),
    ('a.jsonl', b'{"text": "x"}\n{"text"', 'a.jsonl, line 2 is not JSON'),
    ('a.jsonl', b'[' * 100_000, 'a.jsonl, line 1 is not JSON'),
    ('a.jsonl', b'"text"', 'a.jsonl, line 1 is not a JSON object'),
    (
      'a.jsonl',
      b'\n{"body": "x"}',
      r"a.jsonl, line 2 has no text in the field 'text'.*data.text_field \(fields with text: body\)",
    ),
    ('a.jsonl', b'{"text": 3}', r"line 1 has no text in the field 'text'.*\(fields with text: none\)"),
    ('a.gz', gzip.compress(b'text' * 100, mtime=0)[:-9], 'a.gz is not an intact gzip file'),
    ('a.gz', b'text', 'a.gz is not an intact gzip file'),
    ('a.gz', gzip.compress(b'text', mtime=0)[:10] + b'\xff' * 9, 'a.gz is not an intact gzip file'),
  ],
)
def test_a_bad_file_is_refused(tmp_path, name, content, message):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(ConfigError, match=message) as error:
    read(tmp_path / name)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  ('paths', 'message'),
  [
    ('missing.txt', r'no file matches missing\.txt in '),
    ('*.txt', r'no file matches \*\.txt in '),
    ('folder', r'folder is a directory: name its files, as in folder/\*\.txt'),
    ('fold*', r'no file matches fold\*'),
    (' , ', 'names no file'),
  ],
)
def test_a_bad_path_is_refused(tmp_path, monkeypatch, paths, message):
  (tmp_path / 'folder').mkdir()
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError, match=message):
    read(paths)


def test_an_unreadable_file_is_refused(tmp_path, monkeypatch):
  (tmp_path / 'a.txt').write_text('secret')

  def refuse(path):
    raise PermissionError(13, 'Permission denied', str(path))

  monkeypatch.setattr(pathlib.Path, 'read_bytes', refuse)
  with pytest.raises(ConfigError, match=r'cannot read .*a\.txt \(Permission denied\)'):
    read(tmp_path / 'a.txt')
