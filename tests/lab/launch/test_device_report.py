"""The description of the devices of the workers, and of an accelerator that JAX does not use."""

import dataclasses
import importlib.metadata

import pytest

from lab.launch import device_report, devices
from lab.launch.devices import DetectedDevices, WorkerSlot
from lab.launch.process_group import SINGLE_PROCESS, ProcessGroup

CPU = DetectedDevices('cpu', 1, '', '')
GPU = DetectedDevices('gpu', 4, 'NVIDIA H200', '')
TPU = DetectedDevices('tpu', 4, 'TPU v5 lite', '')


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
  """Simulates a machine with four cores and without an accelerator."""
  monkeypatch.setattr(device_report, 'cores', lambda: [2, 3, 5, 7])
  monkeypatch.setattr(device_report, 'processor', lambda: 'A CPU')
  monkeypatch.setattr(devices, 'detect_devices', lambda: CPU)
  for name in ('CUDA_VISIBLE_DEVICES', 'JAX_PLATFORMS'):
    monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
  ('detected', 'slots', 'shared', 'group', 'line'),
  [
    (CPU, [WorkerSlot(2, {}), WorkerSlot(3, {})], False, SINGLE_PROCESS, '2 CPU cores (A CPU), 2 runs at a time'),
    (CPU, [WorkerSlot(2, {})], True, SINGLE_PROCESS, '1 CPU core (A CPU), shared with another command'),
    (CPU, [WorkerSlot(2, {})] * 3, False, SINGLE_PROCESS, '1 CPU core (A CPU), 3 runs at a time'),
    (CPU, [WorkerSlot(None, {}, 8)], False, SINGLE_PROCESS, '4 CPU cores (A CPU), as 8 devices'),
    (CPU, [WorkerSlot(None, {})], False, ProcessGroup('a:1', 2, 1), '4 CPU cores (A CPU), process 1 of 2'),
    (
      GPU,
      [WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': gpu}) for gpu in '013'],
      False,
      SINGLE_PROCESS,
      '3 GPUs (NVIDIA H200), 3 runs at a time',
    ),
    (
      TPU,
      [WorkerSlot(None, {}, 4)],
      False,
      SINGLE_PROCESS,
      '4 TPUs (TPU v5 lite)',
    ),
  ],
)
def test_the_devices_are_described(detected, slots, shared, group, line, monkeypatch):
  monkeypatch.setattr(devices, 'detect_devices', lambda: detected)
  monkeypatch.setattr(device_report, 'processor', lambda: 'A CPU')
  monkeypatch.setattr(device_report, 'find_accelerator', lambda: ('', ''))
  assert device_report.describe_devices(slots, shared, group) == [f'training on {line}']


def test_an_accelerator_is_found_by_its_driver(tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', str(tmp_path))
  assert device_report.find_accelerator(tmp_path) == ('', '')
  (tmp_path / 'nvidiactl').touch()  # belongs to the driver, and exists without a GPU
  assert device_report.find_accelerator(tmp_path) == ('', '')
  for name, accelerator in (('accel0', 'a TPU'), ('kfd', 'an AMD GPU'), ('nvidia0', 'an NVIDIA GPU')):
    (tmp_path / name).touch()
    assert device_report.find_accelerator(tmp_path)[0] == accelerator
  smi = tmp_path / 'nvidia-smi'
  smi.write_text('#!/bin/sh\necho "GPU 0: NVIDIA H200 (UUID: GPU-1)"')
  smi.chmod(0o755)
  assert device_report.find_accelerator(tmp_path / 'none') == ('a GPU (NVIDIA H200)', 'cuda13')
  smi.write_text('#!/bin/sh\necho "NVIDIA-SMI has failed"; exit 9')
  assert device_report.find_accelerator(tmp_path / 'none') == ('', '')


def test_an_unused_gpu_is_reported_with_the_way_to_use_it(monkeypatch):
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
