"""What a run's numbers depend on beside its config: code, devices, versions, and settings of JAX and XLA."""

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from training.code_version import DIGEST, code, describe
from training.files import Damaged, read_json, write_sealed
from training.host import cores
from training.run_files.stored_run import ENVIRONMENT, made_with

PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')
# What jax.config holds that decides bits: which random numbers, which types, which program. Its other names are of
# messages, caches, paths, debugging and waiting.
JAX_SETTINGS = (
  'eager_constant_folding', 'jax_allow_f16_reductions', 'jax_compiler_enable_remat_pass',
  'jax_cpu_collectives_implementation', 'jax_custom_vjp3', 'jax_default_device', 'jax_default_matmul_precision',
  'jax_default_prng_impl', 'jax_disable_jit', 'jax_disable_most_optimizations', 'jax_enable_custom_prng',
  'jax_enable_pgle', 'jax_enable_x64', 'jax_exec_time_optimization_effort', 'jax_explicit_x64_dtypes',
  'jax_high_dynamic_range_gumbel', 'jax_memory_fitting_effort', 'jax_memory_fitting_level',
  'jax_numpy_dtype_promotion', 'jax_optimization_level', 'jax_pallas_use_mosaic_gpu',
  'jax_ragged_dot_use_gpu_pallas_triton_lowering', 'jax_ragged_dot_use_ragged_dot_instruction',
  'jax_random_seed_offset', 'jax_remat3', 'jax_scan3', 'jax_softmax_custom_jvp', 'jax_threefry_gpu_kernel_lowering',
  'jax_threefry_partitionable', 'jax_use_direct_linearize', 'jax_use_magma', 'jax_use_shardy_partitioner',
  'jax_xla_profile_version',
)  # fmt: skip
VARIABLES = ('XLA_FLAGS', 'LIBTPU_INIT_ARGS', 'NVIDIA_TF32_OVERRIDE')  # recorded whether they are set or not
# Others of these names are recorded where they are set: what XLA, cuBLAS, cuDNN and oneDNN read.
PREFIXES = ('XLA_', 'TF_XLA_', 'TF_CUDNN_', 'CUBLAS_', 'CUBLASLT_', 'CUDNN_', 'ONEDNN_', 'DNNL_', 'LIBTPU_')
MEMORY_ALONE = ('XLA_PYTHON_CLIENT_', 'XLA_CLIENT_MEM_')  # what our own launcher sets, too


def environment() -> dict[str, Any]:
  """The devices and cores of this process, the versions of what computes, and the settings that decide bits."""
  return {
    'layout': f'{jax.device_count()} {jax.default_backend()} device(s), {len(cores())} core(s)',
    'device': device(),
    'versions': {name: importlib.metadata.version(name) for name in PACKAGES},
    'settings': settings(),
  }


def made_under() -> dict[str, Any]:
  """What of `environment` may decide more than the last bits, by name: device, versions, settings of JAX."""
  found = environment()
  versions = {f'version of {name}': version for name, version in found['versions'].items()}
  return {'device': found['device'], **versions, **found['settings']}


def device() -> str:
  """The kind of the devices; of a CPU, its model: which instructions it has decides bits."""
  kind = jax.devices()[0].device_kind
  return f'{kind} ({processor()})' if kind == 'cpu' else kind


def processor() -> str:
  """The model of this machine's processor, as `AMD EPYC 9B14`."""
  cpuinfo = Path('/proc/cpuinfo')
  lines = cpuinfo.read_text(errors='replace').splitlines() if cpuinfo.exists() else []
  models = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
  return models[0] if models else platform.processor() or platform.machine()


def settings() -> dict[str, str | int | float | bool | None]:
  """All that decides bits and is in no config, by name; a plain value each."""
  values: dict[str, Any] = {name: jax.config.values.get(name) for name in JAX_SETTINGS}
  values |= {name: os.environ.get(name) for name in VARIABLES}
  values |= {name: text for name, text in sorted(os.environ.items()) if _is_read_by_xla(name)}
  return {name: _plain(value) for name, value in values.items()} | {'python': platform.python_version()}


def _is_read_by_xla(name: str) -> bool:
  return name.startswith(PREFIXES) and not name.startswith(MEMORY_ALONE)


def _plain(value: Any) -> str | int | float | bool | None:
  """An enum by its name's value; anything else that JSON does not have, in words."""
  value = getattr(value, 'value', value)
  return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def note_environment(directory: Path, data_checksum: str, resumed: bool) -> str | None:
  """Keeps environment.json beside a run, and says what has changed since the run was begun.

  Returns:
    For a run that is resumed elsewhere, one line; else None. What code it is resumed with, its checkpoints know.
  """
  path, here = directory / ENVIRONMENT, {**environment(), 'data_checksum': data_checksum}
  try:
    before, lost = (read_json(path) if resumed else None), None
  except Damaged:
    before, lost = None, f'{path} was damaged and is written anew: what this run was begun with is not known'
  write_sealed(path, {**here, 'code': code()})
  if before is None:
    return lost
  changed = [text for name, value in here.items() if name in before for text in _changes(name, before[name], value)]
  return f'resumed in another environment, so its numbers may differ ({", ".join(changed)})' if changed else None


def notes_on_run(directory: Path) -> list[str]:
  """In what this process differs from the one that trained a run, as far as its files say: code, settings of JAX."""
  before, lines = made_with(directory), []
  if 'code' in before and before['code']['digest'] != DIGEST:
    lines.append(
      f'{directory} was trained by other code ({describe(before["code"])}) than what measures it ({describe(code())})'
    )
  changed = _changes('settings', before['settings'], settings()) if 'settings' in before else []
  if changed:
    lines.append(f'{directory} was trained under other settings ({", ".join(changed)})')
  return lines


def _changes(name: str, before: Any, now: Any) -> list[str]:
  """What differs, a phrase each; of a dict, by its keys."""
  if isinstance(before, Mapping) and isinstance(now, Mapping):
    keys = [*now, *(key for key in before if key not in now)]
    return [text for key in keys for text in _changes(key, before.get(key), now.get(key))]
  return [] if before == now else [f'{name}: {before} then, {now} now']
