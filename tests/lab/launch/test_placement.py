"""The cores and GPUs that workers use while other commands run. The test starts the other command as a process."""

import fcntl
import os
import subprocess
import sys

import pytest

from lab.launch import device_locks, devices, placement
from lab.launch.devices import DetectedDevices, WorkerSlot
from lab.launch.process_group import SINGLE_PROCESS, ProcessGroup

OTHER = """
import sys
from pathlib import Path
from lab.launch import device_locks
device_locks.FOLDER = Path(sys.argv[1])
with device_locks.reserve(sys.argv[2], sys.argv[3].split(','), [1] * int(sys.argv[4])) as reservations:
  print(*(name for reservation in reservations for name in reservation.names), flush=True)
  sys.stdin.read()
"""
CPU = DetectedDevices('cpu', 1, '', '')


@pytest.fixture(autouse=True)
def four_cores(tmp_path, monkeypatch):
  """Simulates a machine with four cores, and a separate folder of locks for each test."""
  monkeypatch.setattr(device_locks, 'FOLDER', tmp_path / 'devices')
  monkeypatch.setattr(placement, 'cores', lambda: [2, 3, 5, 7])
  monkeypatch.setattr(devices, 'detect_devices', lambda: CPU)
  for name in ('CUDA_VISIBLE_DEVICES', 'TPU_VISIBLE_CHIPS', 'JAX_PLATFORMS', 'XLA_PYTHON_CLIENT_PREALLOCATE'):
    monkeypatch.delenv(name, raising=False)


@pytest.fixture
def other():
  """Starts another command with a number of workers; kills it at the end of the test."""
  started: list[subprocess.Popen] = []

  def start(workers, kind='core', names='2,3,5,7'):
    command = [sys.executable, '-c', OTHER, str(device_locks.FOLDER), kind, names, str(workers)]
    started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert started[-1].stdout.readline().split()
    return started[-1]

  yield start
  for process in started:
    with process:
      process.kill()


def cores_of(workers):
  with placement.place_workers([WorkerSlot(2, {})] * workers) as (slots, shared):
    return [slot.core for slot in slots], shared


def test_a_command_uses_the_cores_that_no_other_command_uses(other):
  assert cores_of(2) == ([2, 3], False)
  assert cores_of(6) == ([2, 3, 5, 7, 2, 3], False)  # its own workers share cores if there are more of them
  first = other(1)
  assert cores_of(1) == ([3], False)
  assert cores_of(4) == ([3, 5, 7, 2], True)
  other(3)
  assert cores_of(1) == ([2], True)
  other(1)
  assert cores_of(1) == ([3], True)  # the least loaded, since core 2 has two workers now
  first.kill()  # releases its locks
  first.wait()
  assert cores_of(1) == ([2], False)


def test_two_launches_in_one_process_use_different_cores():
  with (
    placement.place_workers([WorkerSlot(2, {})] * 3) as (first, _),
    placement.place_workers([WorkerSlot(2, {})]) as (second, shared),
  ):
    assert {slot.core for slot in first}.isdisjoint(slot.core for slot in second)
    assert not shared


def test_foreign_files_in_the_folder_block_no_command():
  assert cores_of(1) == ([2], False)
  pipe = device_locks.FOLDER / 'core-2.0'
  pipe.unlink()
  os.mkfifo(pipe)
  (device_locks.FOLDER / 'core-3.0').symlink_to('/dev/zero')
  assert cores_of(2)[0][1] == 5


@pytest.mark.parametrize('broken', ['a file', 'a link', 'no locks', 'read-only', 'locks only files open for writing'])
def test_where_locks_cannot_be_used_workers_are_placed_as_if_no_other_command_ran(broken, tmp_path, monkeypatch):
  folder = device_locks.FOLDER
  if broken == 'a file':
    folder.touch()
  elif broken == 'a link':
    folder.symlink_to(tmp_path)
  elif broken == 'read-only':

    def refuse(path, flags, mode=0o777):
      raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr('os.open', refuse)
  else:

    def refuse_lock(descriptor, operation):
      if broken == 'no locks':
        raise OSError(38, 'Function not implemented')
      if operation & fcntl.LOCK_EX:  # as on NFS
        raise OSError(9, 'Bad file descriptor')

    monkeypatch.setattr('fcntl.flock', refuse_lock)
  assert cores_of(6) == ([2, 3, 5, 7, 2, 3], False)


def test_beyond_the_highest_level_workers_are_spread_over_the_cores(monkeypatch):
  monkeypatch.setattr(device_locks, 'MAX_LEVELS', 1)
  with device_locks.reserve('core', ['2', '3', '5', '7'], [1] * 4):
    assert cores_of(4) == ([2, 3, 5, 7], True)


def test_locks_are_shared_by_all_users_for_any_umask():
  before = os.umask(0o077)
  try:
    assert cores_of(1) == ([2], False)
  finally:
    os.umask(before)
  assert device_locks.FOLDER.stat().st_mode & 0o7777 == 0o1777
  assert {path.stat().st_mode & 0o777 for path in device_locks.FOLDER.iterdir()} == {0o644}


def gpus_of(slots):
  with placement.place_workers(slots) as (moved, shared):
    return [slot.environment['CUDA_VISIBLE_DEVICES'] for slot in moved], shared, moved


def test_gpus_are_reserved_like_cores(other, monkeypatch):
  monkeypatch.setattr(devices, 'detect_devices', lambda: DetectedDevices('gpu', 4, 'NVIDIA H200', ''))
  one_each = devices.worker_slots(4, whole_machine=False)
  assert gpus_of(one_each)[:2] == (['0', '1', '2', '3'], False)
  first = other(1, 'gpu', '0,1,2,3')
  assert gpus_of(one_each[:2])[:2] == (['1', '2'], False)
  assert gpus_of([WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': '0,1'}, 2)])[:2] == (['1,2'], False)
  gpus, shared, (slot,) = gpus_of([WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': '0,1,2,3'}, 4)])
  assert (gpus, shared) == (['1,2,3,0'], True)
  assert slot.environment['XLA_PYTHON_CLIENT_PREALLOCATE'] == 'false'
  first.kill()
  first.wait()
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '6, 7')
  monkeypatch.setattr(devices, 'detect_devices', lambda: DetectedDevices('gpu', 2, 'NVIDIA H200', ''))
  other(1, 'gpu', '6,7')
  assert gpus_of(devices.worker_slots(1, whole_machine=False))[:2] == (['7'], False)


@pytest.mark.parametrize(
  ('slots', 'group'),
  [
    ([WorkerSlot(None, {'NPROC': '4'})], SINGLE_PROCESS),
    ([WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': '1'})], ProcessGroup('localhost:1', 4, 1, local_index=1)),
  ],
)
def test_slots_of_the_whole_machine_and_of_process_groups_are_not_moved(slots, group, other):
  other(4)
  with placement.place_workers(slots, group) as placed:
    assert placed == (slots, False)
