"""metrics.jsonl, the record of a run, and the TensorBoard files made from it."""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import FileWriter
from tensorboardX.proto.summary_pb2 import Summary

from training.config import ConfigError
from training.files import write_atomically


class MetricsLog:
  """Appends one JSON object a logged step, `step` first; numbers that are not finite are null.

  A value is a number or a list of numbers; TensorBoard shows the numbers alone.

  Opening it cuts the file to the steps up to `last_step` (what a resumed run has really done), and makes the
  TensorBoard files again from what is left.
  """

  def __init__(self, directory: Path, last_step: int):
    self._path = directory / 'metrics.jsonl'
    kept = read_metrics(self._path, last_step)
    write_atomically(self._path, ''.join(f'{json.dumps(row)}\n' for row in kept))
    shutil.rmtree(directory / 'tensorboard', ignore_errors=True)
    self._file = self._path.open('a', encoding='utf8')
    self._events = FileWriter(directory / 'tensorboard')
    for row in kept:
      self._add_event(row)

  def write(self, step: int, metrics: Mapping[str, float | list[float]]) -> None:
    """Adds a step's metrics; the line is on its way to the disk when this returns."""
    row = {'step': step} | {name: _as_json(value) for name, value in metrics.items()}
    self._file.write(json.dumps(row, allow_nan=False) + '\n')
    self._file.flush()
    self._add_event(row)

  def _add_event(self, row: Mapping[str, Any]) -> None:
    values = [
      Summary.Value(tag=name, simple_value=math.nan if value is None else value)
      for name, value in row.items()
      if name != 'step' and not isinstance(value, list)
    ]
    self._events.add_summary(Summary(value=values), row['step'])

  def __enter__(self) -> 'MetricsLog':
    return self

  def __exit__(self, *exception) -> None:
    self._file.close()
    self._events.close()


def _as_json(value: float | list[float]) -> Any:
  if isinstance(value, list):
    return [_as_json(float(f'{one:.6g}')) for one in value]  # there are thousands of them
  return value if math.isfinite(value) else None


def read_metrics(path: Path, last_step: int) -> list[dict[str, Any]]:
  """The rows of a metrics.jsonl up to last_step; a last line cut short by a kill is left out.

  Raises:
    ConfigError: if a line before the last is no row.
  """
  rows: list[dict[str, Any]] = []
  if path.exists():
    for number, line in enumerate(path.read_text('utf8', errors='replace').splitlines(keepends=True), 1):
      if not line.endswith('\n'):
        break
      try:
        row = json.loads(line)
        step = int(row['step'])
      except (ValueError, KeyError, TypeError):
        raise ConfigError(f'{path}, line {number} is damaged: delete {path.parent} and run again') from None
      if step > last_step:
        break
      rows.append(row)
  return rows
