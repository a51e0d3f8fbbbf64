"""Extracts texts from JSON and JSON Lines: one field of each record."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from training.config import ConfigError


def is_json_lines(name: str) -> bool:
  """Whether a file of this name is JSON Lines: one record per line."""
  return name.lower().endswith(('.jsonl', '.ndjson'))


def is_json(name: str) -> bool:
  """Whether a file of this name is a single JSON value."""
  return name.lower().endswith('.json')


def json_texts(name: str, content: bytes, field: str) -> list[bytes]:
  """Returns the texts in a JSON file: an array of records or strings, one record, or JSON Lines despite its name.

  Args:
    name: the file, for messages.
    content: its bytes; those that are not valid UTF-8 are replaced.
    field: the field of each record that contains the text.

  Raises:
    ConfigError: if the content is none of these, or a record has no text in the field.
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
        f'data.paths: {name} is a single JSON object without the field {field!r}: write an array of records or '
        f'strings, or set data.text_field ({_text_fields(value)})'
      )
    value = [value]
  if not isinstance(value, list):
    raise ConfigError(f'data.paths: {name} is not a JSON array: write an array of records or strings')
  return list(_texts(name, 'record', enumerate(value, start=1), field, strings=True))


def json_line_texts(name: str, content: bytes, field: str) -> list[bytes]:
  """Returns the texts in a JSON Lines file, of all lines that are not blank.

  Args:
    name: the file, for messages.
    content: its bytes; those that are not valid UTF-8 are replaced.
    field: the field of each record that contains the text.

  Raises:
    ConfigError: for the first line that is not a JSON object with text in the field.
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
  """Yields the text of each (number, record), encoded as UTF-8, except empty ones."""
  for number, record in records:
    where = f'data.paths: {name}, {kind} {number}'
    if strings and isinstance(record, str):
      text = record
    elif not isinstance(record, dict):
      raise ConfigError(f'{where} is not a JSON object{" or string" if strings else ""}')
    elif not isinstance(record.get(field), str):
      raise ConfigError(f'{where} has no text in the field {field!r}: set data.text_field ({_text_fields(record)})')
    else:
      text = record[field]
    if '\0' in text:
      raise ConfigError(f'{where} contains a NUL character, which is not text: remove it')
    if text:
      yield text.encode('utf-8', 'replace')


def _text_fields(record: dict[str, Any]) -> str:
  names = ', '.join(name for name, value in record.items() if isinstance(value, str))
  return f'fields with text: {names or "none"}'


def _is_record(line: bytes) -> bool:
  try:
    return isinstance(json.loads(line), dict)
  except (ValueError, RecursionError):
    return False
