"""The slots of workers on cores, GPUs and chips, and the detection of devices."""

import pytest

from lab.launch import devices
from lab.launch.devices import DetectedDevices, WorkerSlot, cpu_environment, worker_slots
from lab.launch.process_group import ProcessGroup
from training.config import ConfigError, MeshConfig
from training.host import cores

FORCED = '--xla_force_host_platform_device_count=3'
CPU = cpu_environment(several=False)


def detect(monkeypatch, platform, count):
  monkeypatch.setattr(devices, 'detect_devices', lambda: DetectedDevices(platform, count, '', ''))


def test_on_a_cpu_each_worker_has_a_core_and_a_heap_that_never_shrinks(monkeypatch):
  monkeypatch.setattr(devices, 'cores', lambda: [3, 5])
  monkeypatch.setenv('NPROC', '64')  # set by a build system
  assert worker_slots(0, whole_machine=False) == [WorkerSlot(core, CPU | {'NPROC': '1'}) for core in (3, 5)]
  assert [slot.core for slot in worker_slots(5, whole_machine=False)] == [3, 5, 3, 5, 3]
  assert worker_slots(3, whole_machine=True) == [WorkerSlot(None, CPU | {'NPROC': '2'})]


@pytest.mark.parametrize('settings', [{'JAX_NUM_CPU_DEVICES': '3'}, {'XLA_FLAGS': FORCED}])
def test_devices_simulated_by_the_environment_are_counted(settings, monkeypatch):
  for name in ('JAX_NUM_CPU_DEVICES', 'XLA_FLAGS'):
    monkeypatch.setenv(name, settings.get(name, ''))
  assert {slot.devices for slot in worker_slots(2, whole_machine=False)} == {3}
  assert worker_slots(0, whole_machine=True)[0].devices == 3


@pytest.mark.parametrize(
  ('mesh', 'processes', 'xla_flags', 'simulated', 'count'),
  [
    (MeshConfig(), 1, '', None, 1),
    (MeshConfig(data=2), 1, '', '2', 2),
    (MeshConfig(fsdp=8), 1, '', '8', 8),
    (MeshConfig(data=2, fsdp=4), 2, '', '4', 4),
    (MeshConfig(), 1, '--xla_force_host_platform_device_count=4', None, 4),
    (MeshConfig(data=2), 1, '--xla_force_host_platform_device_count=4', None, 4),
    (MeshConfig(data=8), 1, '--xla_force_host_platform_device_count=4', '8', 8),
  ],
)
def test_on_a_cpu_as_many_devices_are_simulated_as_the_mesh_has(
  mesh, processes, xla_flags, simulated, count, monkeypatch
):
  monkeypatch.setenv('XLA_FLAGS', xla_flags)
  monkeypatch.delenv('JAX_NUM_CPU_DEVICES', raising=False)
  (slot,) = worker_slots(0, True, mesh, ProcessGroup('localhost:1', processes, 0))
  assert (slot.environment.get('JAX_NUM_CPU_DEVICES'), slot.devices) == (simulated, count)
  assert slot.environment.items() >= cpu_environment(several=count > 1).items()
  assert ('arena_max=1' in slot.environment['GLIBC_TUNABLES']) == (count > 1)


def test_on_a_gpu_host_each_worker_has_a_gpu(monkeypatch):
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  detect(monkeypatch, 'gpu', 4)
  gpus = [slot.environment['CUDA_VISIBLE_DEVICES'] for slot in worker_slots(0, whole_machine=False)]
  assert gpus == ['0', '1', '2', '3']
  assert [slot.environment['CUDA_VISIBLE_DEVICES'] for slot in worker_slots(2, whole_machine=False)] == ['0', '1']
  assert worker_slots(0, whole_machine=True) == [WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': '0,1,2,3'}, 4)]
  assert worker_slots(0, True, MeshConfig(data=2)) == [WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': '0,1'}, 2)]
  assert worker_slots(0, True, MeshConfig(fsdp=8)) == [WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': '0,1,2,3'}, 4)]
  started_by_slurm = ProcessGroup('localhost:1', 4, 2, local_index=2)
  assert worker_slots(0, True, MeshConfig(), started_by_slurm) == [WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': '2'})]
  two_per_gpu = [slot.environment for slot in worker_slots(7, whole_machine=False)]
  assert [environment['CUDA_VISIBLE_DEVICES'] for environment in two_per_gpu] == [*'0123012']
  assert {environment['XLA_PYTHON_CLIENT_MEM_FRACTION'] for environment in two_per_gpu} == {'0.45'}
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '2,3,6,7')  # set by a scheduler
  gpus = [slot.environment['CUDA_VISIBLE_DEVICES'] for slot in worker_slots(0, whole_machine=False)]
  assert gpus == ['2', '3', '6', '7']
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '0')  # srun --gpus-per-task=1: each task sees its own as the first
  detect(monkeypatch, 'gpu', 1)
  assert worker_slots(0, True, MeshConfig(), started_by_slurm) == [WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': '0'})]


def test_on_a_tpu_host_each_worker_has_a_chip(monkeypatch):
  monkeypatch.delenv('TPU_VISIBLE_CHIPS', raising=False)
  detect(monkeypatch, 'tpu', 4)
  for workers, chips in ((0, '0123'), (2, '01'), (9, '0123')):  # a chip can be used by only one process
    environments = [slot.environment for slot in worker_slots(workers, whole_machine=False)]
    assert [environment['TPU_VISIBLE_CHIPS'] for environment in environments] == [*chips]
    assert {environment['TPU_CHIPS_PER_PROCESS_BOUNDS'] for environment in environments} == {'1,1,1'}
    assert {environment['TPU_PROCESS_BOUNDS'] for environment in environments} == {'1,1,1'}
  assert worker_slots(0, whole_machine=True) == [WorkerSlot(None, {}, 4)]
  monkeypatch.setenv('TPU_VISIBLE_CHIPS', '2,3')
  detect(monkeypatch, 'tpu', 2)
  chips = [slot.environment['TPU_VISIBLE_CHIPS'] for slot in worker_slots(0, whole_machine=False)]
  assert chips == ['2', '3']
  detect(monkeypatch, 'tpu', 1)
  assert worker_slots(3, whole_machine=False) == [WorkerSlot(None, {})]


def test_an_accelerator_that_jax_cannot_use_is_an_error(monkeypatch):
  monkeypatch.setattr(devices, 'ACCELERATOR_PLUGINS', ('pytest',))
  monkeypatch.setenv('JAX_PLATFORMS', 'tpu')
  with pytest.raises(ConfigError, match=r"JAX cannot use this accelerator: .*'tpu'"):
    worker_slots(0, whole_machine=False)
  monkeypatch.setenv('JAX_PLATFORMS', 'cuda')
  for plugins in (('pytest',), ()):  # installed or not: it must not fall back to the CPU
    monkeypatch.setattr(devices, 'ACCELERATOR_PLUGINS', plugins)
    with pytest.raises(ConfigError, match='no such device, or its JAX plugin is not installed'):
      worker_slots(0, whole_machine=False)
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  assert worker_slots(0, whole_machine=True) == [WorkerSlot(None, CPU | {'NPROC': str(len(cores()))})]


def test_device_detection_has_a_timeout(monkeypatch):
  monkeypatch.setattr(devices, 'has_accelerator_plugin', lambda: True)
  monkeypatch.setattr(devices, 'DETECTION_SCRIPT', 'import time; time.sleep(60)')
  monkeypatch.setattr(devices, 'DETECTION_TIMEOUT', 0.1)
  monkeypatch.setenv('BLOCKLAB_TRIAL', 'never')  # an environment whose devices are not cached
  with pytest.raises(ConfigError, match='JAX did not find its devices within'):
    devices.detect_devices()


def test_output_of_sitecustomize_is_not_mistaken_for_the_detected_devices(monkeypatch, tmp_path):
  """It may print anything when Python starts and exits."""
  (tmp_path / 'sitecustomize.py').write_text(
    "import atexit\nprint('welcome gpu 9', end='')\natexit.register(print, 'bye 7')\n"
  )
  monkeypatch.setattr(devices, 'has_accelerator_plugin', lambda: True)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  monkeypatch.delenv('JAX_NUM_CPU_DEVICES', raising=False)
  monkeypatch.delenv('XLA_FLAGS', raising=False)
  detected = devices.detect_devices()
  assert (detected.platform, detected.count, detected.kind) == ('cpu', 1, 'cpu')
