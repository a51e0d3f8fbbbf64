"""Lock files on a file system without locks."""

import errno
import json
import os
import time
from pathlib import Path

import pytest
from failing_locks import fail_locks
from held_elsewhere import THIS_PROCESS, WITHOUT_LOCKS, claim_of, content_of, held_elsewhere, lock_of

from training.config import ConfigError
from training.run_files import lock_files, locks

ERRORS = ('ENOSYS', 'ENOLCK', 'EOPNOTSUPP', 'EINVAL')
pytestmark = pytest.mark.usefixtures('no_patience')


@pytest.fixture(params=ERRORS)
def without_locks(request, monkeypatch):
  fail_locks(getattr(errno, request.param), monkeypatch.setattr)
  locks._warn_once.cache_clear()


def test_runs_are_locked_and_claimed_without_locks(directory, without_locks, caplog):
  for take in (lambda: locks.locked(directory / 'lock'), lambda: locks.claimed([directory])):
    locks.check_free(directory)
    assert locks.trainer(directory) is None
    for _ in range(2):
      with take():
        with pytest.raises(ConfigError, match=f'{directory} is being trained by {THIS_PROCESS}: wait'):
          locks.check_free(directory)
        with pytest.raises(ConfigError, match=f'is being trained by {THIS_PROCESS}'), take():
          pass
    locks.check_free(directory)
  assert sorted(content_of(directory)) == [str(directory / 'claim'), str(directory / 'lock')]
  warned = [record.getMessage() for record in caplog.records]
  assert len(warned) == 1
  assert 'has no locks (' in warned[0]
  assert 'lock files are used instead' in warned[0]


def test_the_trainer_is_known_without_locks(directory, without_locks):
  with locks.locked(directory / 'lock'):
    assert locks.trainer(directory) == THIS_PROCESS
  assert locks.trainer(directory) is None


def test_other_errors_are_raised(directory, monkeypatch):
  fail_locks(errno.EIO, monkeypatch.setattr)
  with pytest.raises(OSError, match='Input/output error'), locks.locked(directory / 'lock'):
    pass
  with pytest.raises(OSError, match='Input/output error'), locks.claimed([directory]):
    pass


@pytest.mark.parametrize('kind', ['claim', 'lock'])
def test_a_killed_process_frees_its_run_at_once(directory, kind, monkeypatch):
  fail_locks(replace=monkeypatch.setattr)
  held = lock_of(directory) if kind == 'lock' else claim_of(directory)
  with held_elsewhere(held, before=WITHOUT_LOCKS) as first, pytest.raises(ConfigError, match=f'process {first.pid} on'):
    locks.check_free(directory)
  assert (directory / f'{kind}.held').exists()
  locks.check_free(directory)
  with locks.locked(directory / 'lock'), locks.claimed([directory]):
    pass
  assert not list(directory.glob('*.held'))


def write_foreign_lock(path: Path, age: float) -> None:
  """Writes a lock file of a process on another machine, whose last heartbeat was `age` seconds ago."""
  path.parent.mkdir(parents=True, exist_ok=True)
  owner = {'token': 'a', 'host': 'node7', 'pid': os.getpid(), 'started': '1', 'machine': 'node7 boot namespace'}
  path.write_text(json.dumps(owner))
  os.utime(path, (time.time() - age,) * 2)


def test_a_lock_of_another_machine_expires_with_its_heartbeat(directory, without_locks):
  path = directory / 'lock.held'
  write_foreign_lock(path, age=lock_files.EXPIRY - 20)
  with pytest.raises(ConfigError, match=f'is being trained by process {os.getpid()} on node7'):
    locks.check_free(directory)
  assert lock_files.acquire(path) is None
  write_foreign_lock(path, age=lock_files.EXPIRY + 20)
  locks.check_free(directory)
  with locks.locked(directory / 'lock'):
    assert locks.trainer(directory) == THIS_PROCESS


def test_a_reused_process_id_holds_no_lock(tmp_path):
  lock = lock_files.acquire(tmp_path / 'lock.held')
  owner = json.loads(lock.path.read_text())
  assert lock_files.acquire(lock.path) is None
  lock.path.write_text(json.dumps(owner | {'started': '1'}))
  assert lock_files.holder(lock.path) is None
  assert lock_files.acquire(lock.path) is not None


def test_an_unfinished_lock_file_is_held(tmp_path):
  (tmp_path / 'lock.held').touch()
  assert lock_files.acquire(tmp_path / 'lock.held') is None
  assert lock_files.holder(tmp_path / 'lock.held') == 'another process'


def test_the_heartbeat_touches_the_file(tmp_path, monkeypatch):
  monkeypatch.setattr(lock_files, 'HEARTBEAT', 0.01)
  lock = lock_files.acquire(tmp_path / 'lock.held')
  os.utime(lock.path, (0, 0))
  with lock_files.beating([lock]):
    while lock.path.stat().st_mtime == 0:
      time.sleep(0.01)
  assert not lock.path.exists()


def test_a_process_notices_a_lost_lock_and_does_not_release_it(directory, without_locks):
  with locks.locked(directory / 'lock') as lock:
    lock.check()
    write_foreign_lock(directory / 'lock.held', age=0)
    with pytest.raises(locks.Moved, match='deleted or replaced while in use: another process may train'):
      lock.check()
  assert (directory / 'lock.held').exists()


def test_a_lock_taken_during_its_removal_is_restored(tmp_path):
  write_foreign_lock(tmp_path / 'lock.held', age=0)
  before = (tmp_path / 'lock.held').read_text()
  lock_files._remove(tmp_path / 'lock.held', {'token': 'judged stale'})
  assert (tmp_path / 'lock.held').read_text() == before
  assert os.listdir(tmp_path) == ['lock.held']
