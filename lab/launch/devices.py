"""What there is to run on, and the environment a worker needs there."""

import dataclasses
import functools
import importlib.util
import math
import os
import re
import subprocess
import sys
from typing import NamedTuple

from lab.cli.start_up import reason
from lab.launch.processes import ALONE, Processes
from training.config import ConfigError, MeshConfig
from training.host import cores

GPU_MEMORY = 0.9  # the share of a GPU's memory that all its workers reserve; a single one keeps JAX's default
ACCELERATOR_PLUGINS = ('jax_cuda12_plugin', 'jax_cuda13_plugin', 'jax_rocm60_plugin', 'jax_rocm7_plugin', 'libtpu')
# For processes that share a TPU host and do not talk to each other; as JAX's own jax/_src/test_multiprocess.py has it.
ONE_CHIP = {
  'TPU_CHIPS_PER_PROCESS_BOUNDS': '1,1,1', 'TPU_PROCESS_BOUNDS': '1,1,1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}  # fmt: skip
PATIENCE = 300  # seconds; the first look at a pod takes minutes
ANSWER = 'blocklab-devices'  # begins the line that counts, whatever else a site prints as Python starts
ASK = f"""
import jax
devices, platform = jax.local_devices(), jax.default_backend()
count = len({{tuple(device.coords) for device in devices}} if platform == 'tpu' else devices)
print('\\n{ANSWER}', platform, count, devices[0].device_kind)
"""  # some chips are two devices

ANY_MESH = MeshConfig()


@dataclasses.dataclass(frozen=True)
class Answer:
  """What JAX has found: 'cpu', 'gpu' or 'tpu'; how many GPUs or chips; their kind; and what it has said of it."""

  platform: str
  count: int
  kind: str
  said: str


class Place(NamedTuple):
  """Where one worker runs: one core (None: all of them), what its environment adds, and the devices it has there."""

  core: int | None
  environment: dict[str, str]
  devices: int = 1


def worker_places(
  workers: int, whole_machine: bool, mesh: MeshConfig = ANY_MESH, processes: Processes = ALONE
) -> list[Place]:
  """A place for each worker: on a CPU one core each, on a GPU host one GPU each, on a TPU host one chip each.

  Args:
    workers: how many; 0: one for each core, GPU or chip. A chip of a TPU serves one process alone.
    whole_machine: one worker, with every core, with every chip, or with the GPUs that its mesh names (a single run).
    mesh: of a single run; on a CPU it has as many devices as that names, which share the cores.
    processes: that train it together, and each have a part of the mesh.

  Raises:
    ConfigError: if there is an accelerator that JAX cannot use.
  """
  platform, devices = _accelerators()
  named = math.ceil(mesh.named / processes.count)
  if platform == 'gpu' and processes.local_index is not None:  # Slurm may show each process its own GPU, or all of them
    gpus = visible('CUDA_VISIBLE_DEVICES', devices)
    return [Place(None, {'CUDA_VISIBLE_DEVICES': gpus[processes.local_index % len(gpus)]})]
  if platform == 'gpu' and whole_machine:
    count = devices if mesh.data == -1 else min(named, devices)
    return [Place(None, {'CUDA_VISIBLE_DEVICES': ','.join(visible('CUDA_VISIBLE_DEVICES', devices)[:count])}, count)]
  if platform == 'gpu':
    count = workers or devices
    share = math.ceil(count / devices)
    memory = {} if share == 1 else {'XLA_PYTHON_CLIENT_MEM_FRACTION': f'{GPU_MEMORY / share:.2f}'}
    gpus = visible('CUDA_VISIBLE_DEVICES', devices)
    return [Place(None, {'CUDA_VISIBLE_DEVICES': gpus[k % devices]} | memory) for k in range(count)]
  if platform == 'tpu' and devices > 1 and not whole_machine:
    chips = visible('TPU_VISIBLE_CHIPS', devices)
    return [Place(None, {'TPU_VISIBLE_CHIPS': chip} | ONE_CHIP) for chip in chips[: workers or devices]]
  if platform != 'cpu':
    return [Place(None, {}, devices)]
  own = cores()
  environment = cpu_environment(several=max(mesh.named, devices, processes.count) > 1)
  environment['NPROC'] = str(len(own) if whole_machine else 1)  # threads of XLA's, which knows of no CPU quota
  if whole_machine and named > devices:
    return [Place(None, {**environment, 'JAX_NUM_CPU_DEVICES': str(named)}, named)]
  if whole_machine:
    return [Place(None, environment, devices)]
  return [Place(own[k % len(own)], environment, devices) for k in range(workers or len(own))]


def cpu_environment(several: bool) -> dict[str, str]:
  """What the environment adds of a process that trains on a CPU: where its memory comes from, if malloc is glibc's.

  XLA allocates the buffers of a program anew at every execution. glibc would map each large one, fault its pages in and
  give it back: a third of a step. Keeping them on heaps that never shrink, in huge pages, spares all of it.

  Args:
    several: devices, whose programs run on threads of XLA's. A thread's own heap holds nothing over 64 MB, so that they
      share the main one. That of one device runs where it is called (training/memory.py), and has the main one anyway.
  """
  heaps = ':glibc.malloc.arena_max=1' if several else ''
  kept = 'glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=0x1000000000:glibc.malloc.hugetlb=1'
  return {'GLIBC_TUNABLES': kept + heaps}


def simulated() -> tuple[int, str]:
  """How many devices the environment makes of a CPU, and what of it does: (1, '') if nothing does."""
  named = os.environ.get('JAX_NUM_CPU_DEVICES', '')
  if named.isdecimal() and int(named):
    return int(named), f'JAX_NUM_CPU_DEVICES={named}'
  forced = re.findall(r'--xla_force_host_platform_device_count=(\d+)', os.environ.get('XLA_FLAGS', ''))
  return (int(forced[-1]), f'XLA_FLAGS={os.environ["XLA_FLAGS"]}') if forced else (1, '')


def visible(variable: str, devices: int) -> list[str]:
  """The names of the devices this process may use: a scheduler, or the user, may have chosen some."""
  given = os.environ.get(variable)
  return [name.strip() for name in given.split(',')] if given else [str(k) for k in range(devices)]


def _accelerators() -> tuple[str, int]:
  """('cpu' | 'gpu' | 'tpu', GPUs or chips)."""
  found = ask_jax()
  return found.platform, found.count


def has_plugin() -> bool:
  """Whether what JAX needs for a GPU or a TPU is installed."""
  return any(importlib.util.find_spec(plugin) for plugin in ACCELERATOR_PLUGINS)


def ask_jax() -> Answer:
  """What JAX finds here, asked of a process of its own: JAX would keep what it has looked at.

  Raises:
    ConfigError: if there is an accelerator that JAX cannot use.
  """
  if not has_plugin() and os.environ.get('JAX_PLATFORMS', '').strip() in ('', 'cpu'):
    return Answer('cpu', simulated()[0], '', '')
  return _asked(frozenset(os.environ.items()))


@functools.cache
def _asked(environment: frozenset[tuple[str, str]]) -> Answer:
  try:
    answer = subprocess.run(
      [sys.executable, '-P', '-c', ASK], capture_output=True, text=True, errors='replace', stdin=subprocess.DEVNULL,
      env=dict(environment), timeout=PATIENCE,
    )  # fmt: skip
  except subprocess.TimeoutExpired:
    raise ConfigError(f'JAX has not found its devices within {PATIENCE} s: JAX_PLATFORMS=cpu does without') from None
  lines = [line.split(maxsplit=3) for line in answer.stdout.splitlines() if line.startswith(ANSWER)]
  if answer.returncode or not lines:
    raise ConfigError(f'JAX cannot use this accelerator: {reason(answer)}')
  _, platform, devices, kind = lines[-1]
  return Answer(platform, int(devices), kind, answer.stderr.strip())
