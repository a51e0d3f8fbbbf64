"""The provenance of numbers, in addition to the config: code, devices, versions, and settings of JAX and XLA."""

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from training.code_version import code_version, distinct_versions
from training.host import cores, processor

# The fields of a provenance, and the type of each in JSON.
FIELDS: Mapping[str, type] = {'code': dict, 'layout': str, 'device': str, 'versions': dict, 'settings': dict}
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')
# The entries of jax.config that affect the bits of results: random numbers, types, compiled programs. The others
# concern messages, caches, paths, debugging and waiting.
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
VARIABLES = ('XLA_FLAGS', 'LIBTPU_INIT_ARGS', 'NVIDIA_TF32_OVERRIDE')  # recorded even if they are not set
# Variables with these prefixes, which XLA, cuBLAS, cuDNN and oneDNN read, are recorded if they are set.
PREFIXES = ('XLA_', 'TF_XLA_', 'TF_CUDNN_', 'CUBLAS_', 'CUBLASLT_', 'CUDNN_', 'ONEDNN_', 'DNNL_', 'LIBTPU_')
MEMORY_PREFIXES = ('XLA_PYTHON_CLIENT_', 'XLA_CLIENT_MEM_')  # only memory allocation; our launcher sets some of them


def provenance() -> dict[str, Any]:
  """The provenance of what this process computes: the code version and the environment; see FIELDS."""
  return {'code': code_version(), **environment()}


def environment() -> dict[str, Any]:
  """The devices and cores of this process, the versions of numerical packages, and the settings that affect results."""
  return {
    'layout': f'{jax.device_count()} {jax.default_backend()} device(s), {len(cores())} core(s)',
    'device': device_name(jax.devices()[0].device_kind),
    'versions': {name: importlib.metadata.version(name) for name in PACKAGES},
    'settings': settings(),
  }


def device_name(kind: str) -> str:
  """The name of a kind of device; for a CPU with its model, since its instruction set affects the bits."""
  return f'{kind} ({processor()})' if kind == 'cpu' else kind


def by_name(recorded: Mapping[str, Any]) -> dict[str, Any]:
  """The values of a recorded environment: `device`, `layout`, `version of jax`, ..., and each setting by its name.

  Args:
    recorded: a dict with some of FIELDS; those that are missing or null are omitted.
  """
  plain = {name: recorded[name] for name in ('device', 'layout') if recorded.get(name)}
  versions = {f'version of {name}': version for name, version in (recorded.get('versions') or {}).items()}
  return {**plain, **versions, **(recorded.get('settings') or {})}


def numerical_environment() -> dict[str, Any]:
  """The parts of the environment that may change more than the last bits, by name: device, versions, settings."""
  return {name: value for name, value in by_name(environment()).items() if name != 'layout'}


def combined(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
  """The provenance of several results: the environment of the first, and `code`, a list of every code version."""
  results = list(results)
  first = {name: results[0].get(name) for name in FIELDS}
  return {**first, 'code': distinct_versions(result.get('code') for result in results)}


def settings() -> dict[str, str | int | float | bool | None]:
  """All settings outside of the config that affect the bits of results, by name; each a plain JSON value."""
  values: dict[str, Any] = {name: jax.config.values.get(name) for name in JAX_SETTINGS}
  values |= {name: os.environ.get(name) for name in VARIABLES}
  values |= {name: text for name, text in sorted(os.environ.items()) if _is_read_by_xla(name)}
  return {name: _plain(value) for name, value in values.items()} | {'python': platform.python_version()}


def _is_read_by_xla(name: str) -> bool:
  return name.startswith(PREFIXES) and not name.startswith(MEMORY_PREFIXES)


def _plain(value: Any) -> str | int | float | bool | None:
  """A value as plain JSON: the value of an enum; the text of any other type."""
  value = getattr(value, 'value', value)
  return value if value is None or isinstance(value, str | int | float | bool) else str(value)
