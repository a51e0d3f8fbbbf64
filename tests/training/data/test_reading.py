"""That only files are read which every process can read again, and that memory can hold."""

import os
import socket
from pathlib import Path

import pytest

from training.config import ConfigError, DataConfig
from training.data import free_memory, reading
from training.data.text import read_documents
from training.data.tokenizer import load_tokenizer


def pipe(path: Path) -> None:
  os.mkfifo(path)


def listening(path: Path) -> None:
  with socket.socket(socket.AF_UNIX) as server:
    server.bind(str(path))


@pytest.mark.parametrize(('make', 'kind'), [(pipe, 'a pipe'), (listening, 'a socket'), (os.mkdir, 'a folder')])
def test_what_is_no_file_is_refused_before_it_is_opened(tmp_path, monkeypatch, make, kind):
  monkeypatch.chdir(tmp_path)
  make(Path('x'))
  os.symlink('x', 'link')
  for path in ('x', 'link'):
    with pytest.raises(ConfigError, match=f'^data.paths: {path} is {kind}, and every process reads the file again: '):
      reading.read_regular('data.paths', path)


@pytest.mark.parametrize('path', ['/dev/stdin', '/dev/fd/0', '/proc/self/fd/0', '/proc/cpuinfo', '/dev/../dev/stdin'])
def test_a_file_of_this_process_is_refused(path):
  """Also where it leads to a file on a disk: in a worker it leads elsewhere."""
  with pytest.raises(ConfigError, match=r'is another file in every process'):
    b'\n'.join(read_documents(DataConfig(task='files', paths=path)))


@pytest.mark.parametrize('path', ['/dev/zero', '/dev/null', '/dev/urandom'])
def test_a_device_is_refused(path):
  message = rf'{path} is a device, and every process'
  with pytest.raises(ConfigError, match=rf'^data\.paths: {message}'):
    read_documents(DataConfig(task='files', paths=path))
  with pytest.raises(ConfigError, match=rf'^data\.tokenizer: {message}'):
    load_tokenizer(path)


def test_a_name_with_a_nul_character_is_refused():
  with pytest.raises(ConfigError, match=r"^data\.tokenizer: 'a\\x00b' cannot be the name of a file"):
    load_tokenizer('a\0b')


def test_a_file_larger_than_memory_is_refused_unread(tmp_path, monkeypatch):
  with open(tmp_path / 'a.txt', 'wb') as file:
    file.truncate(2**42)
  monkeypatch.setattr(Path, 'read_bytes', None)  # called, it would fail
  with pytest.raises(ConfigError, match=r'a\.txt has 4096\.0 GiB of text or more, which takes 4 times as much memory'):
    b'\n'.join(read_documents(DataConfig(task='files', paths=str(tmp_path / 'a.txt'))))


def test_files_count_together(tmp_path, monkeypatch):
  for name in 'abcd':
    (tmp_path / name).write_text(name * 1000)
  monkeypatch.setattr('training.data.text.free_memory', lambda: 3000 * reading.COPIES)
  with pytest.raises(ConfigError, match=r'up to .*/d, has 0\.0 GiB of text or more'):
    b'\n'.join(read_documents(DataConfig(task='files', paths=f'{tmp_path}/*')))


@pytest.mark.parametrize(
  ('groups', 'own', 'expected'),
  [
    ({}, '/a/b', 8 * 2**30),
    ({'': 'max', 'a': 'max'}, '/a/b', 8 * 2**30),
    ({'a': '1000', 'a/b': 'max'}, '/a/b', 1000),
    ({'a': '1000', 'a/b': '900'}, '/a/b', 900),
    ({'': '800'}, '/../elsewhere', 800),
    ({'': '800', 'a': '700'}, '/', 800),
  ],
)
def test_a_container_has_the_memory_it_is_given(tmp_path, monkeypatch, groups, own, expected):
  (tmp_path / 'meminfo').write_text('MemTotal: 9 kB\nMemAvailable:    8388608 kB\n')
  (tmp_path / 'own').write_text(f'0::{own}\n')
  (tmp_path / 'groups').mkdir()
  for name, limit in groups.items():
    (tmp_path / 'groups' / name).mkdir(exist_ok=True, parents=True)
    (tmp_path / 'groups' / name / 'memory.max').write_text(limit + '\n')
  for name, file in (('MEMINFO', 'meminfo'), ('CGROUP', 'own'), ('CGROUPS', 'groups')):
    monkeypatch.setattr(free_memory, name, tmp_path / file)
  assert free_memory.free_memory() == expected


def test_elsewhere_than_on_linux_it_is_all_the_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(free_memory, 'MEMINFO', tmp_path / 'none')
  monkeypatch.setattr(free_memory, 'CGROUP', tmp_path / 'none')
  assert free_memory.free_memory() == os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
