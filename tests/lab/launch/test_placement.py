"""Which cores and GPUs the workers of commands side by side have. A process of the tests is the other command."""

import dataclasses
import fcntl
import importlib.metadata
import os
import subprocess
import sys

import pytest

from lab.launch import device_locks, device_report, devices, placement
from lab.launch.devices import DetectedDevices, WorkerSlot
from lab.launch.process_group import SINGLE_PROCESS, ProcessGroup
from training.config import ConfigError

OTHER = """
import sys
from pathlib import Path
from lab.launch import device_locks
device_locks.FOLDER = Path(sys.argv[1])
with device_locks.reserve(sys.argv[2], sys.argv[3].split(','), [1] * int(sys.argv[4])) as taken:
  print(*(name for one in taken for name in one.names), flush=True)
  sys.stdin.read()
"""
CPU = DetectedDevices('cpu', 1, '', '')
TPU = DetectedDevices('tpu', 4, 'TPU v5 lite', '')


@pytest.fixture(autouse=True)
def four_cores(tmp_path, monkeypatch):
  """And a folder of locks of the test's own, as if this were a machine of its own."""
  monkeypatch.setattr(device_locks, 'FOLDER', tmp_path / 'devices')
  for module in (placement, device_report):
    monkeypatch.setattr(module, 'cores', lambda: [2, 3, 5, 7])
  monkeypatch.setattr(devices, 'detect_devices', lambda: CPU)
  for name in ('CUDA_VISIBLE_DEVICES', 'TPU_VISIBLE_CHIPS', 'JAX_PLATFORMS', 'XLA_PYTHON_CLIENT_PREALLOCATE'):
    monkeypatch.delenv(name, raising=False)


@pytest.fixture
def other():
  """Starts another command with so many workers; what is left of it at the end is killed."""
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
  with placement.place_workers([WorkerSlot(2, {})] * workers) as (places, shared):
    return [place.core for place in places], shared


def test_a_command_has_the_cores_that_another_leaves(other):
  assert cores_of(2) == ([2, 3], False)
  assert cores_of(6) == ([2, 3, 5, 7, 2, 3], False)  # its own workers share, since it was asked for so many
  first = other(1)
  assert cores_of(1) == ([3], False)
  assert cores_of(4) == ([3, 5, 7, 2], True)
  other(3)
  assert cores_of(1) == ([2], True)
  other(1)
  assert cores_of(1) == ([3], True)  # the least loaded: the first core has two by now
  first.kill()  # a lock ends with its process
  first.wait()
  assert cores_of(1) == ([2], False)


def test_within_a_command_each_worker_keeps_its_core():
  with (
    placement.place_workers([WorkerSlot(2, {})] * 3) as (first, _),
    placement.place_workers([WorkerSlot(2, {})]) as (second, shared),
  ):
    assert {place.core for place in first}.isdisjoint(place.core for place in second)
    assert not shared


def test_what_somebody_has_put_in_the_folder_holds_nobody_up():
  assert cores_of(1) == ([2], False)
  pipe = device_locks.FOLDER / 'core-2.0'
  pipe.unlink()
  os.mkfifo(pipe)
  (device_locks.FOLDER / 'core-3.0').symlink_to('/dev/zero')
  assert cores_of(2)[0][1] == 5


@pytest.mark.parametrize(
  'broken', ['a file', 'a link', 'no locks', 'read-only', 'nothing to lock unless it is open for writing']
)
def test_without_a_folder_of_locks_workers_are_placed_as_if_alone(broken, tmp_path, monkeypatch):
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
      if operation & fcntl.LOCK_EX:  # as NFS has it
        raise OSError(9, 'Bad file descriptor')

    monkeypatch.setattr('fcntl.flock', refuse_lock)
  assert cores_of(6) == ([2, 3, 5, 7, 2, 3], False)


def test_where_nobody_keeps_count_any_more_workers_are_spread_over_the_cores(monkeypatch):
  monkeypatch.setattr(device_locks, 'MAX_LEVELS', 1)
  with device_locks.reserve('core', ['2', '3', '5', '7'], [1] * 4):
    assert cores_of(4) == ([2, 3, 5, 7], True)


def test_locks_are_for_all_users_whatever_the_umask():
  before = os.umask(0o077)
  try:
    assert cores_of(1) == ([2], False)
  finally:
    os.umask(before)
  assert device_locks.FOLDER.stat().st_mode & 0o7777 == 0o1777
  assert {path.stat().st_mode & 0o777 for path in device_locks.FOLDER.iterdir()} == {0o644}


def gpus_of(places):
  with placement.place_workers(places) as (moved, shared):
    return [place.environment['CUDA_VISIBLE_DEVICES'] for place in moved], shared, moved


def test_gpus_are_taken_likewise(other, monkeypatch):
  monkeypatch.setattr(devices, 'detect_devices', lambda: DetectedDevices('gpu', 4, 'NVIDIA H200', ''))
  one_each = devices.worker_slots(4, whole_machine=False)
  assert gpus_of(one_each)[:2] == (['0', '1', '2', '3'], False)
  taker = other(1, 'gpu', '0,1,2,3')
  assert gpus_of(one_each[:2])[:2] == (['1', '2'], False)
  assert gpus_of([WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': '0,1'}, 2)])[:2] == (['1,2'], False)
  gpus, shared, (place,) = gpus_of([WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': '0,1,2,3'}, 4)])
  assert (gpus, shared) == (['1,2,3,0'], True)
  assert place.environment['XLA_PYTHON_CLIENT_PREALLOCATE'] == 'false'
  taker.kill()
  taker.wait()
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '6, 7')
  monkeypatch.setattr(devices, 'detect_devices', lambda: DetectedDevices('gpu', 2, 'NVIDIA H200', ''))
  other(1, 'gpu', '6,7')
  assert gpus_of(devices.worker_slots(1, whole_machine=False))[:2] == (['7'], False)


@pytest.mark.parametrize(
  ('places', 'processes'),
  [
    ([WorkerSlot(None, {'NPROC': '4'})], SINGLE_PROCESS),
    ([WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': '1'})], ProcessGroup('localhost:1', 4, 1, local_index=1)),
  ],
)
def test_what_has_the_whole_machine_or_its_own_part_stays(places, processes, other):
  other(4)
  with placement.place_workers(places, processes) as settled:
    assert settled == (places, False)


@pytest.mark.parametrize(
  ('found', 'places', 'shared', 'processes', 'line'),
  [
    (CPU, [WorkerSlot(2, {}), WorkerSlot(3, {})], False, SINGLE_PROCESS, '2 CPU cores (A CPU), 2 runs at a time'),
    (CPU, [WorkerSlot(2, {})], True, SINGLE_PROCESS, '1 CPU core (A CPU), shared with another command'),
    (CPU, [WorkerSlot(2, {})] * 3, False, SINGLE_PROCESS, '1 CPU core (A CPU), 3 runs at a time'),
    (CPU, [WorkerSlot(None, {}, 8)], False, SINGLE_PROCESS, '4 CPU cores (A CPU), as 8 devices'),
    (CPU, [WorkerSlot(None, {})], False, ProcessGroup('a:1', 2, 1), '4 CPU cores (A CPU), process 1 of 2'),
    (
      DetectedDevices('gpu', 4, 'NVIDIA H200', ''),
      [WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': gpu}) for gpu in '013'],
      False,
      SINGLE_PROCESS,
      '3 GPUs (NVIDIA H200), 3 runs at a time',
    ),
    (
      DetectedDevices('tpu', 4, 'TPU v5 lite', ''),
      [WorkerSlot(None, {}, 4)],
      False,
      SINGLE_PROCESS,
      '4 TPUs (TPU v5 lite)',
    ),
  ],
)
def test_the_device_is_named(found, places, shared, processes, line, monkeypatch):
  monkeypatch.setattr(devices, 'detect_devices', lambda: found)
  monkeypatch.setattr(device_report, 'processor', lambda: 'A CPU')
  monkeypatch.setattr(device_report, 'find_accelerator', lambda: ('', ''))
  assert device_report.describe_devices(places, shared, processes) == [f'training on {line}']


def test_a_gpu_that_is_not_used_is_told(tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', str(tmp_path))
  assert device_report.find_accelerator(tmp_path) == ('', '')
  (tmp_path / 'nvidiactl').touch()  # of the driver, without a GPU
  assert device_report.find_accelerator(tmp_path) == ('', '')
  for name, told in (('accel0', 'a TPU'), ('kfd', 'an AMD GPU'), ('nvidia0', 'an NVIDIA GPU')):
    (tmp_path / name).touch()
    assert device_report.find_accelerator(tmp_path)[0] == told
  smi = tmp_path / 'nvidia-smi'
  smi.write_text('#!/bin/sh\necho "GPU 0: NVIDIA H200 (UUID: GPU-1)"')
  smi.chmod(0o755)
  assert device_report.find_accelerator(tmp_path / 'none') == ('a GPU (NVIDIA H200)', 'cuda13')
  smi.write_text('#!/bin/sh\necho "NVIDIA-SMI has failed"; exit 9')
  assert device_report.find_accelerator(tmp_path / 'none') == ('', '')


def test_what_would_use_it_is_told_too(monkeypatch):
  monkeypatch.setattr(device_report, 'find_accelerator', lambda: ('a GPU (NVIDIA H200)', 'cuda13'))
  monkeypatch.setattr(devices, 'has_accelerator_plugin', lambda: False)
  _, line = device_report.describe_devices([WorkerSlot(2, {})])
  version = importlib.metadata.version('jax')
  assert line == f"a GPU (NVIDIA H200) was found but is not used; to train on it: pip install 'jax[cuda13]=={version}'"
  monkeypatch.setattr(devices, 'has_accelerator_plugin', lambda: True)
  monkeypatch.setattr(
    devices, 'detect_devices', lambda: dataclasses.replace(CPU, messages='one\nlibcudart.so.13: cannot open')
  )
  _, line = device_report.describe_devices([WorkerSlot(2, {})])
  assert line.endswith("not used, because JAX's plugin for it does not start: libcudart.so.13: cannot open")
  for name, value in (('JAX_PLATFORMS', 'cpu'), ('CUDA_VISIBLE_DEVICES', ''), ('CUDA_VISIBLE_DEVICES', 'NoDevFiles')):
    with monkeypatch.context() as patch:
      patch.setenv(name, value)
      assert len(device_report.describe_devices([WorkerSlot(2, {})])) == 1


def test_nobody_waits_for_ever_for_a_device(monkeypatch):
  monkeypatch.undo()
  monkeypatch.setattr(devices, 'has_accelerator_plugin', lambda: True)
  monkeypatch.setattr(devices, 'DETECTION_SCRIPT', 'import time; time.sleep(60)')
  monkeypatch.setattr(devices, 'DETECTION_TIMEOUT', 0.1)
  monkeypatch.setenv('BLOCKLAB_TRIAL', 'never')  # else an answer may be known
  with pytest.raises(ConfigError, match='JAX did not find its devices within'):
    devices.detect_devices()


def test_a_banner_is_no_answer_of_jax(monkeypatch, tmp_path):
  """What a site prints as Python starts, before and after, with the numbers that it likes."""
  (tmp_path / 'sitecustomize.py').write_text(
    "import atexit\nprint('welcome gpu 9', end='')\natexit.register(print, 'bye 7')\n"
  )
  monkeypatch.undo()
  monkeypatch.setattr(devices, 'has_accelerator_plugin', lambda: True)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  monkeypatch.delenv('JAX_NUM_CPU_DEVICES', raising=False)
  monkeypatch.delenv('XLA_FLAGS', raising=False)
  found = devices.detect_devices()
  assert (found.platform, found.count, found.kind) == ('cpu', 1, 'cpu')
