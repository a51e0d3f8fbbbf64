"""Only regular files, which every process can read again, are read, and only if they fit in memory."""

import os
import socket
from pathlib import Path

import pytest

from training.config import ConfigError, DataConfig
from training.data import free_memory, regular_files
from training.data.documents import read_documents
from training.data.tokenizer import load_tokenizer


def pipe(path: Path) -> None:
  os.mkfifo(path)


def socket_file(path: Path) -> None:
  with socket.socket(socket.AF_UNIX) as server:
    server.bind(str(path))


@pytest.mark.parametrize(('make', 'kind'), [(pipe, 'a pipe'), (socket_file, 'a socket'), (os.mkdir, 'a directory')])
def test_a_path_that_is_not_a_regular_file_is_refused_before_it_is_opened(tmp_path, monkeypatch, make, kind):
  monkeypatch.chdir(tmp_path)
  make(Path('x'))
  os.symlink('x', 'link')
  for path in ('x', 'link'):
    with pytest.raises(ConfigError, match=f'^data.paths: {path} is {kind}, which not every process can read: '):
      regular_files.read_regular_file('data.paths', path)


@pytest.mark.parametrize('path', ['/dev/stdin', '/dev/fd/0', '/proc/self/fd/0', '/proc/cpuinfo', '/dev/../dev/stdin'])
def test_a_path_that_depends_on_the_process_is_refused(path):
  """Even if it refers to a regular file: in a worker process it refers to a different one."""
  with pytest.raises(ConfigError, match=r'is a different file in each process'):
    b'\n'.join(read_documents(DataConfig(task='files', paths=path)))


@pytest.mark.parametrize('path', ['/dev/zero', '/dev/null', '/dev/urandom'])
def test_a_device_is_refused(path):
  message = rf'{path} is a device, which not every process can read'
  with pytest.raises(ConfigError, match=rf'^data\.paths: {message}'):
    read_documents(DataConfig(task='files', paths=path))
  with pytest.raises(ConfigError, match=rf'^data\.tokenizer: {message}'):
    load_tokenizer(path)


def test_a_name_with_a_nul_character_is_refused():
  with pytest.raises(ConfigError, match=r"^data\.tokenizer: 'a\\x00b' is not a valid file name"):
    load_tokenizer('a\0b')


def test_a_file_larger_than_memory_is_refused_without_reading_it(tmp_path, monkeypatch):
  with open(tmp_path / 'a.txt', 'wb') as file:
    file.truncate(2**42)
  monkeypatch.setattr(Path, 'read_bytes', None)  # a call would fail
  with pytest.raises(ConfigError, match=r'a\.txt has at least 4096\.0 GiB of text, which needs 4 times as much memory'):
    b'\n'.join(read_documents(DataConfig(task='files', paths=str(tmp_path / 'a.txt'))))


def test_all_files_together_must_fit_in_memory(tmp_path, monkeypatch):
  for name in 'abcd':
    (tmp_path / name).write_text(name * 1000)
  monkeypatch.setattr('training.data.documents.free_memory', lambda: 3000 * regular_files.COPIES)
  with pytest.raises(ConfigError, match=r'up to .*/d, has at least 0\.0 GiB of text'):
    b'\n'.join(read_documents(DataConfig(task='files', paths=f'{tmp_path}/*')))


@pytest.mark.parametrize(
  ('limits', 'group', 'expected'),
  [
    ({}, '/a/b', 8 * 2**30),
    ({'': 'max', 'a': 'max'}, '/a/b', 8 * 2**30),
    ({'a': '1000', 'a/b': 'max'}, '/a/b', 1000),
    ({'a': '1000', 'a/b': '900'}, '/a/b', 900),
    ({'': '800'}, '/../other', 800),
    ({'': '800', 'a': '700'}, '/', 800),
  ],
)
def test_free_memory_is_limited_by_control_groups(tmp_path, monkeypatch, limits, group, expected):
  (tmp_path / 'meminfo').write_text('MemTotal: 9 kB\nMemAvailable:    8388608 kB\n')
  (tmp_path / 'cgroup').write_text(f'0::{group}\n')
  (tmp_path / 'groups').mkdir()
  for name, limit in limits.items():
    (tmp_path / 'groups' / name).mkdir(exist_ok=True, parents=True)
    (tmp_path / 'groups' / name / 'memory.max').write_text(limit + '\n')
  for name, file in (('MEMINFO', 'meminfo'), ('CGROUP', 'cgroup'), ('CGROUPS', 'groups')):
    monkeypatch.setattr(free_memory, name, tmp_path / file)
  assert free_memory.free_memory() == expected


def test_on_other_systems_free_memory_is_all_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(free_memory, 'MEMINFO', tmp_path / 'none')
  monkeypatch.setattr(free_memory, 'CGROUP', tmp_path / 'none')
  assert free_memory.free_memory() == os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
