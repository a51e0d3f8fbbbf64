import errno
import json
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from training import files
from training.config import ConfigError


def test_writing_a_file_creates_its_folders(tmp_path):
  path = tmp_path / 'a' / 'b' / 'file'
  assert files.write_atomically(path, 'naïve ', b'\xff', np.array([1, 2], np.uint8)) == path
  assert path.read_bytes() == b'na\xc3\xafve \xff\x01\x02'
  assert os.listdir(path.parent) == ['file']
  files.write_atomically(path)
  assert path.read_bytes() == b''


@pytest.mark.parametrize(('umask', 'mode'), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664), (0o027, 0o640)])
def test_the_permissions_of_a_file_follow_the_umask(tmp_path, umask, mode):
  before = os.umask(umask)
  try:
    path = files.write_atomically(tmp_path / 'file', 'a')
    files.write_atomically(path, 'b')
  finally:
    os.umask(before)
  assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize('moment', ['while it is written', 'as it is put in place'])
@pytest.mark.parametrize('error', [OSError(28, 'No space left on device'), KeyboardInterrupt()])
def test_a_failed_write_leaves_only_the_old_file(tmp_path, monkeypatch, moment, error):
  path = tmp_path / 'file'
  path.write_text('old')

  def refuse(*args):
    raise error

  class Unwritable(str):
    encode = refuse

  parts = ['new']
  if moment == 'while it is written':
    parts.append(Unwritable('more'))
  else:
    monkeypatch.setattr(os, 'replace', refuse)
  with pytest.raises(type(error)):
    files.write_atomically(path, *parts)
  assert path.read_text() == 'old'
  assert os.listdir(tmp_path) == ['file']


def test_readers_see_the_old_file_until_the_new_one_is_complete(tmp_path):
  path = tmp_path / 'file'
  path.write_text('old')
  seen = []

  class Text(str):
    def encode(self):
      seen.append(path.read_text())
      return super().encode()

  files.write_atomically(path, Text('new'), Text('er'))
  assert seen == ['old', 'old']
  assert path.read_text() == 'newer'


def test_unfinished_files_of_a_killed_writer_are_deleted(tmp_path):
  program = f"""
import os, pathlib, signal
from training import files
class Killed(str):
  def encode(self):
    os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(pathlib.Path({str(tmp_path / 'file')!r}), 'half', Killed())
"""
  assert subprocess.run([sys.executable, '-c', program]).returncode == -9
  (left,) = os.listdir(tmp_path)
  (tmp_path / '.mine').touch()
  files.clear_unfinished(tmp_path)
  assert os.listdir(tmp_path) == ['.mine']
  assert left.startswith('.file.')


def test_json_round_trips(tmp_path):
  value = {'status': 'completed', 'val_loss': 0.1 + 0.2, 'steps': 2**60, 'diverged_at': None, 'versions': {'jax': '1'}}
  assert files.read_json(files.write_json(tmp_path / 'a.json', value)) == value
  assert (tmp_path / 'a.json').read_text().endswith('}\n')


@pytest.mark.parametrize('number', [math.nan, math.inf, -math.inf])
def test_nonfinite_numbers_are_not_written_as_json(tmp_path, number):
  files.write_json(tmp_path / 'a.json', {'old': 1})
  with pytest.raises(ValueError, match='not JSON compliant'):
    files.write_json(tmp_path / 'a.json', {'new': [number]})
  assert json.loads((tmp_path / 'a.json').read_text()) == {'old': 1}
  assert os.listdir(tmp_path) == ['a.json']


def test_reading_a_missing_file_returns_none(tmp_path):
  assert files.read_json(tmp_path / 'a.json') is None
  (tmp_path / 'file').touch()
  assert files.read_json(tmp_path / 'file' / 'a.json') is None


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'{"a": 1', r'a\.json is damaged \(.*delimiter.*\): delete '),
    (b'', r'a\.json is damaged \(.*\): delete '),
    (b'\xff\xfe', r'a\.json is damaged \(.*decode.*\): delete '),
    (b'[1]', r'a\.json is damaged \(not a JSON object\): delete '),
    (b'null', r'a\.json is damaged \(not a JSON object\): delete '),
  ],
)
def test_a_damaged_file_is_named_with_a_remedy(tmp_path, content, message):
  (tmp_path / 'a.json').write_bytes(content)
  with pytest.raises(ConfigError, match=message) as error:
    files.read_json(tmp_path / 'a.json')
  assert str(error.value).endswith('): delete only this file, and run the same command again')
  assert '\n' not in str(error.value)


def test_a_folder_where_a_file_is_needed_is_named(tmp_path):
  (tmp_path / 'a.json').mkdir()
  with pytest.raises(ConfigError, match=rf'^{re.escape(str(tmp_path))}/a\.json cannot be read: Is a directory$'):
    files.read_json(tmp_path / 'a.json')


# --- messages when a file cannot be written

CAUSES = {
  errno.ENOSPC: 'once there is space on the disk, the same command resumes the run',
  errno.EDQUOT: 'once your disk quota allows it, the same command resumes the run',
  errno.EAGAIN: 'a limit on processes or threads was reached (ulimit -u)',
  errno.EACCES: 'give this user write permission there, or choose another --workdir',
  errno.EROFS: 'the file system is read-only',
  errno.EISDIR: 'there is a folder where a file is needed',
  errno.EMFILE: 'too many open files',
  errno.EFBIG: 'ulimit -f',
  errno.EIO: 'the disk reported an error',
  errno.ENOLCK: 'the file system does not support this',
  errno.EBADF: 'fix the cause, and the same command resumes the run',
}


def wrapped(error: OSError) -> Exception:
  """Raised by a library that wraps the system's error."""
  try:
    raise ValueError('RESOURCE_EXHAUSTED: cannot write') from error
  except ValueError as outer:
    return outer


@pytest.mark.parametrize('number', CAUSES)
def test_a_failed_save_names_its_cause_and_remedy(number):
  error = OSError(number, os.strerror(number), 'a/b')
  for one in (error, wrapped(error), RuntimeError(f'INTERNAL: a/b: {os.strerror(number)}')):
    message = str(files.SaveFailed('a/b', one))
    assert message.startswith('a/b could not be written (')
    assert CAUSES[number] in message
    assert ('disk, the same' in message) == (number == errno.ENOSPC)  # no other remedy mentions disk space
    assert '\n' not in message


def failure_of(path) -> str:
  with pytest.raises(OSError, match=r'\[Errno') as error:
    files.write_atomically(path, 'a')
  return str(files.SaveFailed(error.value.filename, error.value))


def test_a_file_or_folder_in_the_way_is_named(tmp_path):
  (tmp_path / 'lock').mkdir()
  assert f'{tmp_path}/lock' in failure_of(tmp_path / 'lock')
  assert 'there is a folder where a file is needed' in failure_of(tmp_path / 'lock')
  (tmp_path / 'gone').symlink_to(tmp_path / 'nowhere')
  assert 'dangling link' in failure_of(tmp_path / 'gone' / 'file')
  (tmp_path / 'loop').symlink_to(tmp_path / 'loop')
  assert 'link' in failure_of(tmp_path / 'loop' / 'file')
  assert 'too long' in failure_of(tmp_path / ('x' * 300))
  assert os.listdir(tmp_path / 'lock') == []


# --- checksums


def test_a_change_to_a_sealed_file_is_detected(tmp_path):
  path = files.write_sealed(tmp_path / 'a.json', {'unigram': 4.43, 'text': 'b2c26b87'})
  assert files.read_json(path) == {'unigram': 4.43, 'text': 'b2c26b87'}
  path.write_text(path.read_text().replace('4.43', '4.33'))
  with pytest.raises(files.Damaged, match=r'a\.json is damaged \(its content does not match its checksum\): count it'):
    files.read_json(path, 'count it again')
  files.write_json(path, {'unigram': 4.43})
  assert files.read_json(path) == {'unigram': 4.43}  # written by an older version
  with pytest.raises(files.Damaged, match='its checksum is missing'):
    files.read_json(path, sealed=lambda value: True)


def test_a_save_that_could_not_start_a_thread_names_the_limit():
  message = str(files.SaveFailed('checkpoints/5', RuntimeError("can't start new thread")))
  assert "could not be written (can't start new thread)" in message
  assert 'a limit on processes or threads was reached (ulimit -u)' in message
