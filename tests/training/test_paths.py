"""Paths in flags."""

import os
from pathlib import Path

import pytest

from training.config import ConfigError
from training.paths import check_output, is_one_line, parse_path, printable


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('~nosuchuser/runs', '--workdir=~nosuchuser/runs: no such user'),
    ('a\nb', r'--workdir=a\\nb: its name is not UTF-8, or contains a line break'),
    ('a\tb', r'--workdir=a\\tb: its name'),
    ('a\x00b', r'--workdir=a\\x00b: its name'),
    ('a\u2028b', r'--workdir=a\\u2028b: its name'),
    ('a\udcff', r'--workdir=a\\udcff: its name'),
    ('a' * 300, 'File name too long'),
    ('dangling/x', 'dangling is a dangling link'),
    ('loop', 'loop is a dangling link'),
  ],
)
def test_an_invalid_path_is_refused(tmp_path, monkeypatch, text, message):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'dangling').symlink_to('nowhere')
  (tmp_path / 'loop').symlink_to('loop')
  with pytest.raises(ConfigError, match=message) as error:
    parse_path(text, '--workdir')
  assert is_one_line(str(error.value))


@pytest.mark.parametrize('text', ['runs', 'a b', "it's", 'z[/b]', ':smile:', 'é', '$x', '', '.', '..', '/'])
def test_other_names_are_valid_paths(text):
  assert parse_path(text, '--workdir') == Path(text)


def test_a_tilde_is_expanded(monkeypatch, tmp_path):
  monkeypatch.setenv('HOME', str(tmp_path))
  assert parse_path('~/runs', '--workdir') == tmp_path / 'runs'


@pytest.mark.parametrize('name', [b'bad\xff', b'line\nbreak'])
def test_a_current_folder_with_an_invalid_name_is_refused(tmp_path, monkeypatch, name):
  folder = os.path.join(os.fsencode(tmp_path), name)
  os.mkdir(folder)
  monkeypatch.chdir(os.fsdecode(folder))
  with pytest.raises(ConfigError, match=r'^the current folder, .*: its name is not UTF-8') as error:
    parse_path('runs', '--workdir')
  assert is_one_line(str(error.value))


def test_a_deleted_current_folder_is_refused(tmp_path, monkeypatch):
  (tmp_path / 'gone').mkdir()
  monkeypatch.chdir(tmp_path / 'gone')
  (tmp_path / 'gone').rmdir()
  with pytest.raises(ConfigError, match='the current folder has been deleted'):
    parse_path('runs', '--workdir')


def test_an_unwritable_output_folder_is_refused(tmp_path, monkeypatch):
  check_output(tmp_path / 'a/b/c', '--out')
  assert list(tmp_path.iterdir()) == []
  (tmp_path / 'file').touch()
  with pytest.raises(ConfigError, match='file is a file, where a folder is needed'):
    check_output(tmp_path / 'file/b', '--out')
  monkeypatch.setattr(os, 'access', lambda path, mode: False)  # as on a read-only file system
  with pytest.raises(ConfigError, match='is not writable: choose another folder'):
    check_output(tmp_path / 'a', '--out')


def test_printable_text_is_one_line():
  assert printable("it's é") == "it's é"
  assert printable('a\nb\udcff') == 'a\\nb\\udcff'
