"""Checks of the fields of any config dataclass: their types, and the ranges that a device can represent."""

import dataclasses
import math
import typing
import unicodedata
from typing import Any, Literal

SMALLEST, LARGEST_FLOAT = 2.0**-126, 2.0**128 - 2.0**104  # the normal numbers of float32; smaller ones flush to 0
NEARLY_1 = 1 - 2.0**-25  # anything above rounds to 1 in float32
CONTROL = ('Cc', 'Zl', 'Zp')  # Unicode categories: control characters, line and paragraph separators
MAX_SHOWN = 120  # maximum number of characters of a value in a message


class ConfigError(ValueError):
  """An invalid setting or request. The message is one line that states the problem and a remedy."""


def check_types(config: Any, section: str) -> None:
  """Checks each field of a dataclass against its annotation (int, float, bool, str or a Literal of names).

  Numbers must fit their type on a device: int32 (uint32 for a seed), or a normal float32.

  Args:
    config: a frozen dataclass; an int in a float field is converted in place.
    section: its name in messages, as in `model.num_layers`.

  Raises:
    ConfigError: naming the field, its value and the values it accepts.
  """
  for field in dataclasses.fields(config):
    value, kind = getattr(config, field.name), field.type
    if typing.get_origin(kind) is Literal:
      names = typing.get_args(kind)
      if not isinstance(value, str) or value not in names:
        raise ConfigError(f'{section}.{field.name}={_format_value(value)}: must be one of {", ".join(names)}')
      continue
    if kind is float and type(value) is int:
      value = _as_float(value)
      object.__setattr__(config, field.name, value)
    if not isinstance(kind, type):
      continue
    if type(value) is not kind:
      raise ConfigError(
        f'{section}.{field.name}={_format_value(value)}: must be {kind.__name__}, not {type(value).__name__}'
      )
    reason = _out_of_range(value, is_seed=field.name.endswith('seed'))
    if reason:
      raise ConfigError(f'{section}.{field.name}={_format_value(value)}: {reason}')


def _out_of_range(value: Any, is_seed: bool) -> str:
  """Why a field cannot hold this value on a device; empty if it can."""
  if isinstance(value, str):
    bad = next((character for character in value if unicodedata.category(character) in CONTROL), None)
    return '' if bad is None else f'contains the control character {bad!r}'
  if isinstance(value, float):
    if not math.isfinite(value):
      return 'must be a finite number'
    fits = value == 0 or SMALLEST <= abs(value) <= LARGEST_FLOAT
    return '' if fits else f'must be 0 or a normal float32, of magnitude {SMALLEST:.2g} to {LARGEST_FLOAT:.2g}'
  bound = 2**32 if is_seed else 2**31
  return '' if value < bound else f'must be below {bound}'


def _as_float(value: int) -> float:
  try:
    return float(value)
  except OverflowError:
    return math.inf


def _format_value(value: Any) -> str:
  text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else f'{float(10) ** 30:g} or more'
  return text if len(text) <= MAX_SHOWN else f'{text[:MAX_SHOWN]}...'
