"""The record of a reproduction, measured.json: the measured values with their code, settings and machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.reproduction import Reproduction
from training.code_version import DIGEST, code_revision, code_version, describe_code
from training.config import ConfigError
from training.files import read_json
from training.provenance import provenance

Record = Mapping[str, Any]  # the content of measured.json


def command(name: str, scale: str) -> str:
  """The command that repeats a reproduction."""
  return f'python reproduce.py --only={name}' + (f' --scale={scale}' if scale != 'small' else '')


def make_record(reproduction: Reproduction, scale: str, measured: Mapping[str, Any], seconds: float) -> dict[str, Any]:
  """The content of measured.json: the numbers and their provenance."""
  settings, here = to_json(reproduction.at_scale(scale)), provenance()
  return {
    'reproduction': reproduction.name,
    'command': command(reproduction.name, scale),
    'scale': scale,
    'settings': settings,
    'seeds': settings.get('seeds'),
    'seconds': round(seconds, 1),
    'code_revision': code_revision(),
    'made_by': [here.pop('code')],
    'data_checksum': None,
    'jax_settings': here.pop('settings'),
    **here,
    'measured': to_json(measured),
  }


def read_record(path: Path, reproduction: Reproduction) -> dict[str, Any]:
  """Reads a measured.json. Older versions wrote it without a checksum.

  Raises:
    ConfigError: if the file is missing or damaged, or lacks a value that the reproduction now expects; the message
      contains the command that measures it.
  """
  hint = f'measure it with {command(reproduction.name, "small")} --workdir={path.parents[2]}'
  record = read_json(path, hint, sealed=lambda record: 'made_by' in record)
  if record is None:
    raise ConfigError(f'{path} does not exist: {hint}')
  kinds = {'command': str, 'settings': dict, 'seconds': int | float, 'measured': dict}
  missing = [name for name, kind in kinds.items() if not isinstance(record.get(name), kind)]
  if not missing:
    missing = [expected.quantity for expected in reproduction.expected if expected.quantity not in record['measured']]
  if missing:
    raise ConfigError(f'{path} has no {missing[0]!r}: {hint}')
  return record


def code_note(record: Record) -> str | None:
  """A note if the record was measured with different code than this checkout has; otherwise None."""
  others = [made_by for made_by in record.get('made_by', ()) if made_by['digest'] != DIGEST]
  if not others:
    return None
  by = ', '.join(map(describe_code, others))
  return (
    f'{record["reproduction"]}: measured by other code than this checkout ({by}; here {describe_code(code_version())})'
  )


def to_json(value: Any) -> Any:
  """Converts a value to JSON types: arrays become lists, non-finite numbers None."""
  if isinstance(value, Mapping):
    return {str(key): to_json(item) for key, item in value.items()}
  if isinstance(value, str | bool | int | None):
    return value
  if isinstance(value, list | tuple):
    return [to_json(item) for item in value]
  array = np.asarray(value)
  if array.ndim:
    return [to_json(item) for item in array]
  return to_json(array.item()) if not isinstance(value, float) else value if np.isfinite(value) else None
