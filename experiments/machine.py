"""What there is to run on, and the environment a worker needs there."""

import importlib.util
import os
import subprocess
import sys
from typing import NamedTuple

# XLA allocates the buffers of a program anew at every execution. glibc would map each large one, fault its pages in
# and give it back: a third of a step. Keeping them on one heap that never shrinks, in huge pages, spares all of it.
CPU_MALLOC = (
  'glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=0x1000000000:glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1'
)
ACCELERATOR_PLUGINS = ('jax_cuda12_plugin', 'jax_cuda13_plugin', 'jax_rocm60_plugin', 'jax_rocm7_plugin', 'libtpu')


class Place(NamedTuple):
  """Where one worker runs: one core (None: all of them), and what its environment adds."""

  core: int | None
  environment: dict[str, str]


def worker_places(workers: int, whole_machine: bool) -> list[Place]:
  """A place for each worker: on a CPU one core each, on a GPU host one GPU each, on a TPU host all chips.

  Args:
    workers: how many; 0: one for each core or GPU.
    whole_machine: one worker, with all there is (a single run).
  """
  platform, devices = _accelerators()
  if platform == 'gpu' and not whole_machine:
    return [Place(None, {'CUDA_VISIBLE_DEVICES': str(k % devices)}) for k in range(workers or devices)]
  if platform != 'cpu':
    return [Place(None, {})]
  environment = {'GLIBC_TUNABLES': CPU_MALLOC}
  if whole_machine:
    return [Place(None, environment)]
  cores = sorted(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else list(range(os.cpu_count() or 1))
  return [Place(cores[k % len(cores)], environment) for k in range(workers or len(cores))]


def _accelerators() -> tuple[str, int]:
  """('cpu' | 'gpu' | 'tpu', devices), asked of a process of its own: JAX would keep the devices it has looked at."""
  if not any(importlib.util.find_spec(plugin) for plugin in ACCELERATOR_PLUGINS):
    return 'cpu', 1
  ask = 'import jax; print(jax.default_backend(), jax.local_device_count())'
  answer = subprocess.run([sys.executable, '-c', ask], capture_output=True, text=True, check=True).stdout.split()
  return answer[-2], int(answer[-1])
