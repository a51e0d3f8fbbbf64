"""metrics.jsonl, the log of a run, and the TensorBoard files derived from it."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from training.digests import Damaged
from training.files import parse_json, write_atomically
from training.run_files.result import LARGEST
from training.run_files.stored_run import LOG_REMEDY
from training.run_files.times import TimesLog

Mark = Mapping[str, Any]  # a prefix of a log, of whole lines: {'bytes', 'sha256'}
EMPTY: Mark = {'bytes': 0, 'sha256': hashlib.sha256().hexdigest()}


class MetricsLog:
  """Appends one JSON object per logged step, `step` first; numbers that are not finite are null.

  A value is a number or a list of numbers; TensorBoard receives only the numbers.

  Opening the log truncates the file to a mark (the steps up to the checkpoint that a run resumes from), and rewrites
  the TensorBoard files from the remaining rows, each with the time at which it was logged (run_files/times.py).

  Attributes:
    note: a message if the truncated part was damaged; else None.
  """

  def __init__(self, directory: Path, mark: Mark = EMPTY):
    """Opens metrics.jsonl in a run's directory; raises Damaged if it does not begin with the mark's lines."""
    path = directory / 'metrics.jsonl'
    check_mark(path, mark)
    content = path.read_bytes() if path.exists() else b''
    prefix, dropped = content[: mark['bytes']], content[mark['bytes'] :]
    self.note = None if _is_intact(dropped) else f'the end of {path} was damaged: truncated to the checkpoint'
    rows = [json.loads(line) for line in prefix.splitlines()]
    last_written = path.stat().st_mtime if path.exists() else 0.0  # for rows without a time, of older versions
    write_atomically(path, prefix)
    self._times = TimesLog(directory, {row['step'] for row in rows})
    self._hash = hashlib.sha256(prefix)
    self._file = path.open('a', encoding='utf8')
    folder = directory / 'tensorboard'
    if folder.exists():
      shutil.rmtree(folder)
    folder.mkdir()
    # Not FileWriter, which writes in another thread: if a full disk kills that thread, the run would hang.
    self._events = EventsWriter(str(folder / 'events'))
    for row in rows:
      logged = self._times.times.get(row['step'])
      self._add_event(row, logged.wall_time if logged else last_written)
    self._events.flush()

  def write(self, step: int, metrics: Mapping[str, Any], train_seconds: float | None = None) -> None:
    """Adds a step's metrics. The line survives the process's death once this returns, and the machine's after `sync`.

    Args:
      step: the step of the row.
      metrics: by name; `as_row` may already have been applied.
      train_seconds: see training/run_files/times.py.
    """
    row = {'step': step} | as_row(metrics)
    line = json.dumps(row, allow_nan=False) + '\n'
    self._file.write(line)
    self._file.flush()
    self._hash.update(line.encode())
    self._add_event(row, self._times.write(step, train_seconds).wall_time)

  def sync(self) -> Mark:
    """Writes all lines to the disk; returns a mark of them, for `check_mark`."""
    os.fsync(self._file.fileno())
    self._times.sync()
    self._events.flush()
    return {'bytes': self._file.tell(), 'sha256': self._hash.hexdigest()}

  def _add_event(self, row: Mapping[str, Any], wall_time: float) -> None:
    values = [
      Summary.Value(tag=name, simple_value=math.nan if value is None else value)
      for name, value in row.items()
      if name != 'step' and not isinstance(value, list)
    ]
    self._events.write_event(Event(step=row['step'], wall_time=wall_time, summary=Summary(value=values)))

  def __enter__(self) -> 'MetricsLog':
    return self

  def __exit__(self, *exception) -> None:
    self._file.close()
    self._times.close()
    self._events.close()


def as_row(metrics: Mapping[str, Any]) -> dict[str, Any]:
  """Metrics as they are written to metrics.jsonl; idempotent."""
  return {name: _as_json(value) for name, value in metrics.items()}


def _as_json(value: Any) -> Any:
  if isinstance(value, list):
    return [_as_json(None if one is None else float(f'{one:.6g}')) for one in value]  # lists are long
  return value if value is not None and math.isfinite(value) else None


def check_mark(path: Path, mark: Mark) -> None:
  """Raises Damaged if a metrics.jsonl does not begin with the lines of a mark."""
  content = path.read_bytes()[: mark['bytes']] if path.exists() else b''
  if hashlib.sha256(content).hexdigest() != mark['sha256']:
    raise Damaged(f'{path} has changed in its first {mark["bytes"]} bytes')


def read_metrics(path: Path) -> list[dict[str, Any]]:
  """The rows of a metrics.jsonl, without an incomplete last line left by a killed process.

  Raises:
    Damaged: if any other line is not a row of a log.
  """
  rows: list[dict[str, Any]] = []
  if path.exists():
    for number, line in enumerate(path.read_text('utf8', errors='replace').splitlines(keepends=True), 1):
      if not line.endswith('\n'):
        break
      try:
        row = _parse_row(line)
        if rows and row['step'] <= rows[-1]['step']:
          raise ValueError(f'step {row["step"]} after {rows[-1]["step"]}')
        rows.append(row)
      except ValueError as error:
        raise Damaged(f'{path}, line {number} is damaged ({error})', LOG_REMEDY) from None
  return rows


def _is_intact(lines: bytes) -> bool:
  try:
    for line in lines.splitlines():
      _parse_row(line)
  except ValueError:
    return False
  return lines[-1:] in (b'', b'\n')


def _parse_row(line: bytes | str) -> dict[str, Any]:
  """The row in a line: `step`, and numbers, lists of numbers or nulls. Raises ValueError for anything else."""
  row = parse_json(line)
  step = row.get('step')
  if type(step) is not int or step < 0:
    raise ValueError('no step')
  for name, value in row.items():
    if not all(map(_is_number, value if isinstance(value, list) else [value])):
      raise ValueError(f'{name!r} is not a number')
  return row


def _is_number(value: Any) -> bool:
  return value is None or type(value) is float or (type(value) is int and abs(value) < LARGEST)
