"""result.json, the result of a run: written last, with a checksum; read only if every field is valid."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training import provenance
from training.files import Damaged, read_json, write_sealed

RESULT = 'result.json'
STATUSES = ('completed', 'diverged', 'failed_to_learn')
LARGEST = 2**63 - 1  # the largest integer that a table can hold (int64)
REMEDY = 'the command that trained the run evaluates it again, from its last checkpoint'


@dataclasses.dataclass(frozen=True)
class Field:
  """The values that a field of a result may have.

  Attributes:
    kind: its type; an integer is also accepted as a float.
    low: the lower bound.
    strict: whether the bound itself is excluded.
    null: whether it may be None.
    required: whether every result has it; older versions wrote fewer fields.
  """

  kind: type
  low: float = -math.inf
  strict: bool = False
  null: bool = False
  required: bool = True

  def fault(self, value: Any) -> str | None:
    """What is wrong with a value, to be appended to its name; None if it is valid."""
    if value is None:
      return None if self.null else 'is null'
    fits = isinstance(value, (int, float) if self.kind is float else self.kind)
    if not fits or (isinstance(value, bool) and self.kind is not bool):
      return f'is {_short_repr(value)}, not {_KINDS[self.kind]}'
    if isinstance(value, str) and not value.isprintable():
      return f'is {_short_repr(value)}, with unprintable characters'
    if self.kind in (int, float):
      if value < self.low or (self.strict and value == self.low):
        return f'is {_short_repr(value)}, not {"more than" if self.strict else "at least"} {self.low:g}'
      if isinstance(value, int) and value > LARGEST:
        return f'is {_short_repr(value)}, which is too large'
    return None


_KINDS = {
  str: 'text',
  int: 'an integer',
  float: 'a number',
  bool: 'true or false',
  dict: 'an object',
  list: 'a list',
}
_COUNT, _POSITIVE = Field(int, 0), Field(int, 0, strict=True)
_LOSS = Field(float, 0, null=True)
# The required fields come first: they are the columns of results.csv, in this order.
FIELDS: Mapping[str, Field] = {
  'experiment': Field(str),
  'variant': Field(str),
  'seed': _COUNT,
  'status': Field(str),
  'steps': _COUNT,
  'tokens': _COUNT,
  'parameters': _POSITIVE,
  'flops_per_token': _POSITIVE,
  'learning_rate': Field(float, 0),
  'val_loss': _LOSS,
  'val_bits_per_byte': _LOSS,
  'test_bits_per_byte': _LOSS,
  'seconds': Field(float, 0),
  'tokens_per_second': Field(float, 0, null=True),
  'diverged_at': Field(int, 0, strict=True, null=True),
  'test_loss': dataclasses.replace(_LOSS, required=False),
  'unigram_entropy': Field(float, 0, required=False),
  'learning_rate_tuned': Field(bool, required=False),
  'dropped_updates': Field(int, 0, required=False),
  'data_checksum': Field(str, required=False),
  'text_checksum': Field(str, required=False),
  'train_seconds': Field(float, 0, null=True, required=False),
  'final_evaluation_tokens': Field(int, 0, required=False),
  **dict.fromkeys(('val_tokens', 'test_tokens'), Field(int, 0, strict=True, null=True, required=False)),
  **dict.fromkeys(('val_tokens_of', 'test_tokens_of'), Field(int, 0, strict=True, required=False)),
  'evaluated_weights': Field(str, required=False),
  'resumed_at': Field(int, 0, null=True, required=False),
  'extended_at': Field(list, required=False),
  'code_changed_at': Field(list, required=False),
  'environment_changed_at': Field(list, required=False),
  **{name: Field(kind, required=False) for name, kind in provenance.FIELDS.items()},
}


def write_result(directory: Path, result: Mapping[str, Any]) -> Path:
  """Writes result.json into a run's directory, with its checksum."""
  return write_sealed(directory / RESULT, result)


def read_result(directory: Path) -> dict[str, Any] | None:
  """The content of a run's result.json without its checksum; None if there is no such file.

  A result without the field `code` is of an older version, which wrote no checksum: then only the types and ranges of
  its fields are checked (see `is_unchecked`).

  Raises:
    Damaged: if the checksum, or the type or the range of a field, is wrong; the message names the file and the fault.
    ConfigError: if the file cannot be read.
  """
  path = directory / RESULT
  result = read_json(path, REMEDY, sealed=lambda result: not is_unchecked(result))
  if result is not None and (wrong := fault(result)):
    raise Damaged(f'{path} is damaged ({wrong})', REMEDY)
  return result


def is_unchecked(result: Mapping[str, Any]) -> bool:
  """Whether a result is of an older version, which recorded no checksum and no code version."""
  return 'code' not in result


def fault(result: Mapping[str, Any]) -> str | None:
  """What is wrong with the fields of a result; None if they are valid."""
  for name, field in FIELDS.items():
    if name not in result:
      if field.required:
        return f'it has no {name}'
    elif wrong := field.fault(result[name]):
      return f'{name} {wrong}'
  if result['status'] not in STATUSES:
    return f'status is {_short_repr(result["status"])}, not one of {", ".join(STATUSES)}'
  if (result['status'] == 'diverged') != (result['diverged_at'] is not None):
    return f'status is {result["status"]} and diverged_at {result["diverged_at"]}'
  if result['status'] != 'diverged' and result['val_loss'] is None:
    return f'status is {result["status"]} and val_loss null'
  if not is_unchecked(result) and not isinstance(result['code'].get('digest'), str):
    return 'code has no digest'
  return None


def _short_repr(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 40 else f'{text[:40]}...'
