"""Texts out of JSON: a field of each record."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from training.config import ConfigError


def is_json_lines(name: str) -> bool:
  """Whether a file of this name has a record on each line."""
  return name.lower().endswith(('.jsonl', '.ndjson'))


def is_json(name: str) -> bool:
  """Whether a file of this name is one JSON value."""
  return name.lower().endswith('.json')


def json_texts(name: str, content: bytes, field: str) -> list[bytes]:
  """The texts in a JSON file: an array of records or of strings, one record, or, as many such files are, JSON Lines.

  Raises:
    ConfigError: if it is nothing of the kind, or a record has no text in the field.
  """
  try:
    value = json.loads(content.decode('utf-8', 'replace'))
  except (ValueError, RecursionError) as error:
    if len(content.split(b'\n', 1)) == 2 and _is_record(content.split(b'\n', 1)[0]):
      return json_line_texts(name, content, field)
    reason = str(error) if isinstance(error, ValueError) else 'nested too deeply'
    raise ConfigError(f'data.paths: {name} is not JSON ({reason}): correct it') from None
  if isinstance(value, dict):
    if field not in value:
      raise ConfigError(
        f'data.paths: {name} is one JSON object without the field {field!r}: write an array of records or of strings, '
        f'or set data.text_field ({_fields(value)})'
      )
    value = [value]
  if not isinstance(value, list):
    raise ConfigError(f'data.paths: {name} is no JSON array: write an array of records or of strings')
  return list(_texts(name, 'record', enumerate(value, start=1), field, strings=True))


def json_line_texts(name: str, content: bytes, field: str) -> list[bytes]:
  """One field of each line that is not blank; what is not UTF-8, which JSON must be, is replaced.

  Raises:
    ConfigError: for the first line that is no JSON object with text in the field.
  """
  return list(_texts(name, 'line', _lines(name, content), field, strings=False))


def _lines(name: str, content: bytes) -> Iterator[tuple[int, Any]]:
  for number, line in enumerate(content.split(b'\n'), start=1):
    if line.strip():
      try:
        yield number, json.loads(line.decode('utf-8', 'replace'))
      except (ValueError, RecursionError):
        raise ConfigError(f'data.paths: {name}, line {number} is not JSON: correct it, or remove the line') from None


def _texts(name: str, kind: str, records: Iterable[tuple[int, Any]], field: str, strings: bool) -> Iterator[bytes]:
  """The text of each record that has any."""
  for number, record in records:
    place = f'data.paths: {name}, {kind} {number}'
    if strings and isinstance(record, str):
      text = record
    elif not isinstance(record, dict):
      raise ConfigError(f'{place} is no JSON object: each {kind} must be one{" or a string" if strings else ""}')
    elif not isinstance(record.get(field), str):
      raise ConfigError(f'{place} has no text in the field {field!r}: set data.text_field ({_fields(record)})')
    else:
      text = record[field]
    if '\0' in text:
      raise ConfigError(f'{place} has a NUL character, as no text does: remove it')
    if text:
      yield text.encode('utf-8', 'replace')


def _fields(record: dict[str, Any]) -> str:
  return (
    f'there is {", ".join(name for name, value in record.items() if isinstance(value, str)) or "no field with text"}'
  )


def _is_record(line: bytes) -> bool:
  try:
    return isinstance(json.loads(line), dict)
  except (ValueError, RecursionError):
    return False
