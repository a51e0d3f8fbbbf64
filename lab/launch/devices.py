"""The devices of this machine, and the slots on them in which workers run."""

import dataclasses
import functools
import importlib.util
import math
import os
import re
import subprocess
import sys
from typing import NamedTuple

from lab.cli.startup import failure_reason
from lab.launch.process_group import SINGLE_PROCESS, ProcessGroup
from training.config import ConfigError, MeshConfig
from training.host import cores

VARIABLES = {'gpu': 'CUDA_VISIBLE_DEVICES', 'chip': 'TPU_VISIBLE_CHIPS'}  # list the devices that a process may use
GPU_MEMORY = 0.9  # share of a GPU's memory that several workers reserve in total; a single worker keeps JAX's default
ACCELERATOR_PLUGINS = ('jax_cuda12_plugin', 'jax_cuda13_plugin', 'jax_rocm60_plugin', 'jax_rocm7_plugin', 'libtpu')
# For independent processes that share a TPU host, as in JAX's own jax/_src/test_multiprocess.py.
ONE_CHIP = {
  'TPU_CHIPS_PER_PROCESS_BOUNDS': '1,1,1', 'TPU_PROCESS_BOUNDS': '1,1,1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}  # fmt: skip
DETECTION_TIMEOUT = 300  # seconds; on a TPU pod the first detection takes minutes
OUTPUT_MARK = 'blocklab-devices'  # starts the line with the result; sitecustomize may print other lines
# Some TPU chips are two JAX devices, so chips are counted by their coordinates.
DETECTION_SCRIPT = f"""
import jax
devices, platform = jax.local_devices(), jax.default_backend()
count = len({{tuple(device.coords) for device in devices}} if platform == 'tpu' else devices)
print('\\n{OUTPUT_MARK}', platform, count, devices[0].device_kind)
"""

ANY_MESH = MeshConfig()


@dataclasses.dataclass(frozen=True)
class DetectedDevices:
  """The devices that JAX finds on this machine.

  Attributes:
    platform: 'cpu', 'gpu' or 'tpu'.
    count: the number of GPUs, of TPU chips, or of simulated devices of a CPU.
    kind: the model of the device; empty on a CPU if JAX was not started for the detection.
    messages: what JAX wrote to stderr.
  """

  platform: str
  count: int
  kind: str
  messages: str


class WorkerSlot(NamedTuple):
  """Where one worker runs.

  Attributes:
    core: the CPU core that the worker is pinned to; None: it may use all cores.
    environment: variables to add to the environment of the worker.
    devices: the number of JAX devices that it has.
  """

  core: int | None
  environment: dict[str, str]
  devices: int = 1


def worker_slots(
  workers: int, whole_machine: bool, mesh: MeshConfig = ANY_MESH, group: ProcessGroup = SINGLE_PROCESS
) -> list[WorkerSlot]:
  """A slot for each worker: on a CPU one core each, on a GPU host one GPU each, on a TPU host one chip each.

  Args:
    workers: the number of workers; 0: one for each core, GPU or chip. A TPU chip cannot be shared by several processes.
    whole_machine: whether there is one worker, which uses every core, every chip, or as many GPUs as its mesh requires.
    mesh: the mesh of the run, if there is one worker. On a CPU its devices are simulated, and share the cores.
    group: the processes that train the run together, each with a part of the mesh.

  Raises:
    ConfigError: if there is an accelerator that JAX cannot use.
  """
  detected = detect_devices()
  platform, devices = detected.platform, detected.count
  required = math.ceil(mesh.required_devices / group.count)
  if platform == 'gpu' and group.local_index is not None:  # Slurm may show each process its own GPU, or all of them
    gpus = visible_devices('CUDA_VISIBLE_DEVICES', devices)
    return [WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': gpus[group.local_index % len(gpus)]})]
  if platform == 'gpu' and whole_machine:
    count = devices if mesh.data == -1 else min(required, devices)
    gpus = visible_devices('CUDA_VISIBLE_DEVICES', devices)[:count]
    return [WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': ','.join(gpus)}, count)]
  if platform == 'gpu':
    count = workers or devices
    per_gpu = math.ceil(count / devices)
    memory = {} if per_gpu == 1 else {'XLA_PYTHON_CLIENT_MEM_FRACTION': f'{GPU_MEMORY / per_gpu:.2f}'}
    gpus = visible_devices('CUDA_VISIBLE_DEVICES', devices)
    return [WorkerSlot(None, {'CUDA_VISIBLE_DEVICES': gpus[k % devices]} | memory) for k in range(count)]
  if platform == 'tpu' and devices > 1 and not whole_machine:
    chips = visible_devices('TPU_VISIBLE_CHIPS', devices)
    return [WorkerSlot(None, {'TPU_VISIBLE_CHIPS': chip} | ONE_CHIP) for chip in chips[: workers or devices]]
  if platform != 'cpu':
    return [WorkerSlot(None, {}, devices)]
  usable = cores()
  environment = cpu_environment(several=max(mesh.required_devices, devices, group.count) > 1)
  environment['NPROC'] = str(len(usable) if whole_machine else 1)  # XLA's thread count; XLA ignores CPU quotas
  if whole_machine and required > devices:
    return [WorkerSlot(None, {**environment, 'JAX_NUM_CPU_DEVICES': str(required)}, required)]
  if whole_machine:
    return [WorkerSlot(None, environment, devices)]
  return [WorkerSlot(usable[k % len(usable)], environment, devices) for k in range(workers or len(usable))]


def cpu_environment(several: bool) -> dict[str, str]:
  """Environment variables for a process that trains on a CPU: settings of glibc's malloc, without effect elsewhere.

  XLA allocates the buffers of a program anew at every execution. By default glibc maps each large buffer, faults its
  pages in, and unmaps it, which takes a third of a step. Allocating on heaps that never shrink, in huge pages, avoids
  this.

  Args:
    several: whether there are several devices. Their programs run on XLA's threads, whose own heaps hold no buffer over
      64 MB, so these settings make all threads use the main heap. The program of a single device runs in the calling
      thread (training/memory.py), which uses the main heap anyway.
  """
  heaps = ':glibc.malloc.arena_max=1' if several else ''
  reuse = 'glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=0x1000000000:glibc.malloc.hugetlb=1'
  return {'GLIBC_TUNABLES': reuse + heaps}


def simulated_cpu_devices() -> tuple[int, str]:
  """The number of simulated CPU devices that the environment requests, and the setting that does so; else (1, '')."""
  count = os.environ.get('JAX_NUM_CPU_DEVICES', '')
  if count.isdecimal() and int(count):
    return int(count), f'JAX_NUM_CPU_DEVICES={count}'
  forced = re.findall(r'--xla_force_host_platform_device_count=(\d+)', os.environ.get('XLA_FLAGS', ''))
  return (int(forced[-1]), f'XLA_FLAGS={os.environ["XLA_FLAGS"]}') if forced else (1, '')


def visible_devices(variable: str, count: int) -> list[str]:
  """The names of the devices that this process may use: those that the variable lists, by default 0 to count - 1."""
  names = os.environ.get(variable)
  return [name.strip() for name in names.split(',')] if names else [str(k) for k in range(count)]


def has_accelerator_plugin() -> bool:
  """Whether a JAX plugin for GPUs or TPUs is installed."""
  return any(importlib.util.find_spec(plugin) for plugin in ACCELERATOR_PLUGINS)


def detect_devices() -> DetectedDevices:
  """The devices that JAX finds. Runs JAX in a subprocess, because in this process it would not release the devices.

  Raises:
    ConfigError: if there is an accelerator that JAX cannot use.
  """
  if not has_accelerator_plugin() and os.environ.get('JAX_PLATFORMS', '').strip() in ('', 'cpu'):
    return DetectedDevices('cpu', simulated_cpu_devices()[0], '', '')
  return _detect_in_subprocess(frozenset(os.environ.items()))


@functools.cache
def _detect_in_subprocess(environment: frozenset[tuple[str, str]]) -> DetectedDevices:
  try:
    ended = subprocess.run(
      [sys.executable, '-P', '-c', DETECTION_SCRIPT], capture_output=True, text=True, errors='replace',
      stdin=subprocess.DEVNULL, env=dict(environment), timeout=DETECTION_TIMEOUT,
    )  # fmt: skip
  except subprocess.TimeoutExpired:
    raise ConfigError(
      f'JAX did not find its devices within {DETECTION_TIMEOUT} s: set JAX_PLATFORMS=cpu to train on the CPU'
    ) from None
  lines = [line.split(maxsplit=3) for line in ended.stdout.splitlines() if line.startswith(OUTPUT_MARK)]
  if ended.returncode or not lines:
    raise ConfigError(f'JAX cannot use this accelerator: {failure_reason(ended)}')
  _, platform, count, kind = lines[-1]
  return DetectedDevices(platform, int(count), kind, ended.stderr.strip())
