import fcntl
import os
import resource
import socket
import threading

import pytest
from held_elsewhere import THIS_PROCESS, claim_of, content_of, held_elsewhere, lock_of

from training.config import ConfigError
from training.run_files import locks

pytestmark = pytest.mark.usefixtures('no_patience')


@pytest.mark.parametrize('kind', ['claim', 'lock'])
def test_a_run_is_trained_by_one_process_at_a_time(directory, kind):
  locks.check_free(directory)
  take = (lambda: locks.locked(directory / 'lock')) if kind == 'lock' else (lambda: locks.claimed([directory]))
  with held_elsewhere(lock_of(directory) if kind == 'lock' else claim_of(directory)) as first:
    before = content_of(directory)
    who = f'process {first.pid} on {socket.gethostname()}'
    for _ in range(2):
      with pytest.raises(ConfigError) as error:
        locks.check_free(directory)
      assert str(error.value) == f'{directory} is being trained by {who}: wait for it, or stop it'
      with pytest.raises(ConfigError, match=f'is being trained by {who}'), take():
        pass
    assert content_of(directory) == before
  locks.check_free(directory)  # the process was killed, which freed the lock
  with take():
    assert (directory / kind).read_text() == THIS_PROCESS
  locks.check_free(directory)


def test_two_commands_claim_different_runs_of_one_experiment(tmp_path):
  runs = [tmp_path / 'runs' / 'block' / 'baseline' / f'seed_{k}' for k in range(4)]
  with held_elsewhere(claim_of(*runs[:2])) as first:
    with locks.claimed(runs[2:]):
      locks.check_free(runs[3].with_name('seed_4'))
    for refused in ([runs[1]], [runs[3], runs[0]]):
      with pytest.raises(ConfigError, match=f'is being trained by process {first.pid}'), locks.claimed(refused):
        pass
    assert locks.claimant(runs[3]) is None  # claimed before the refusal, now free again
  assert all(locks.claimant(run) is None for run in runs)


def test_claims_need_one_file_descriptor_for_any_number_of_runs(tmp_path):
  runs = [tmp_path / 'runs' / 'block' / 'baseline' / f'seed_{k}' for k in range(100)]
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) + 20, hard))
  try:
    with locks.claimed(runs):
      pass
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_claims_of_a_tuning_grid_are_in_its_experiment(tmp_path):
  run = tmp_path / 'runs' / 'block' / 'tuning' / 'baseline' / 'lr_0.001' / 'seed_100'
  with locks.claimed([run]):
    assert (tmp_path / 'runs' / 'block' / 'claims').exists()
    with pytest.raises(ConfigError, match='is being trained by'), locks.claimed([run]):
      pass


def test_querying_a_lock_does_not_block_its_taking(directory, monkeypatch):
  """A query holds the lock for a moment, in which a run may start."""
  flock, answers = fcntl.flock, iter([BlockingIOError(), None, None])

  def busy_once(file, kind):
    answer = next(answers)
    if answer is not None:
      raise answer
    flock(file, kind)

  assert locks.trainer(directory) is None
  monkeypatch.setattr(fcntl, 'flock', busy_once)
  with locks.locked(directory / locks.LOCK):
    monkeypatch.undo()
    assert locks.trainer(directory) == THIS_PROCESS
  assert locks.trainer(directory) is None


def test_a_waiting_process_gets_the_lock_next(tmp_path):
  order = []

  def second():
    with locks.locked(tmp_path / 'lock', patience=60):
      order.append('second')

  thread = threading.Thread(target=second)
  with locks.locked(tmp_path / 'lock'):
    thread.start()
    order.append('first')
  thread.join()
  assert order == ['first', 'second']


def test_a_wait_times_out_and_names_the_holder(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(locks, 'ANNOUNCE_AFTER', 0.1)
  with (
    locks.locked(tmp_path / 'lock'),
    pytest.raises(ConfigError, match=f'lock has been held by {THIS_PROCESS} for 0 s: stop it'),
    locks.locked(tmp_path / 'lock', patience=0.3),
  ):
    pass
  assert capsys.readouterr().err == f'waiting for {THIS_PROCESS} to release {tmp_path / "lock"}\n'


def test_a_worker_whose_command_was_killed_gets_time_to_exit(directory, monkeypatch):
  monkeypatch.setattr(locks, 'RELEASE_WITHIN', 60.0)
  held = threading.Event()

  def worker():
    with locks.locked(directory / 'lock'):
      held.set()
      threading.Event().wait(0.3)

  thread = threading.Thread(target=worker)
  thread.start()
  held.wait()
  locks.check_free(directory)
  assert not thread.is_alive() or locks.trainer(directory) is None
  thread.join()


def test_a_folder_in_place_of_a_lock_is_named(directory):
  (directory / 'lock').mkdir(parents=True)
  for look in (lambda: locks.check_free(directory), lambda: locks.locked(directory / 'lock').__enter__()):
    with pytest.raises(ConfigError, match='lock is a folder, where a file is needed: move it'):
      look()


@pytest.mark.parametrize('spoil', ['move', 'move the workdir', 'delete', 'replace', 'delete the lock'])
def test_a_moved_or_deleted_directory_is_noticed(directory, tmp_path, spoil):
  with locks.locked(directory / 'lock') as lock:
    lock.check()
    if spoil == 'delete the lock':
      (directory / 'lock').unlink()
    elif spoil == 'delete':
      (directory / 'lock').unlink()
      directory.rmdir()
    else:
      old = tmp_path / 'runs' if spoil == 'move the workdir' else directory
      old.rename(tmp_path / 'moved')
      if spoil == 'replace':
        directory.mkdir()
        (directory / 'lock').touch()
    with pytest.raises(locks.Moved, match=str(directory)):
      lock.check()


def test_claims_notice_a_moved_experiment(directory, tmp_path):
  with locks.claimed([directory]) as check:
    check()
    (tmp_path / 'runs').rename(tmp_path / 'moved')
    with pytest.raises(locks.Moved, match='block was moved or deleted while in use: put it back'):
      check()
