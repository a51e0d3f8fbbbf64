"""What a run's last bits depend on beside its config: devices, cores, versions."""

import importlib.metadata
import os
from pathlib import Path
from typing import Any

import jax

from training.files import read_json, write_json

PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')


def environment() -> dict[str, Any]:
  """The devices and cores of this process, and the versions of what computes."""
  cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
  return {
    'layout': f'{jax.device_count()} {jax.default_backend()} device(s), {cores} core(s)',
    'device': jax.devices()[0].device_kind,
    'versions': {name: importlib.metadata.version(name) for name in PACKAGES},
  }


def note_environment(directory: Path, data_checksum: str, resumed: bool) -> str | None:
  """Keeps environment.json beside a run, and says what has changed since the run was begun.

  Returns:
    For a run that is resumed elsewhere, one line; else None.
  """
  path, here = directory / 'environment.json', {**environment(), 'data_checksum': data_checksum}
  before = read_json(path) if resumed else None
  write_json(path, here)
  if before is None or before == here:
    return None
  changed = ', '.join(
    f'{name}: {before.get(name)} then, {value} now' for name, value in here.items() if before.get(name) != value
  )
  return f'resumed in another environment, so the last bits may differ ({changed})'
