"""times.jsonl: when each row of metrics.jsonl was logged.

A separate file, so that metrics.jsonl is the same to the byte when a run is repeated or resumed.
"""

import json
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

from training.files import write_atomically

TIMES = 'times.jsonl'


class Time(NamedTuple):
  """When a row was logged.

  Attributes:
    wall_time: seconds since the epoch.
    train_seconds: spent in training steps, over all starts of the run, without compilation, evaluation and
      checkpoints. None if an earlier start recorded no times.
  """

  wall_time: float
  train_seconds: float | None


class TimesLog:
  """Appends one JSON object per row of the log: {"step", "wall_time", "train_seconds"}."""

  def __init__(self, directory: Path, steps: set[int]):
    """Opens times.jsonl of a run, and drops lines of other steps and damaged lines."""
    path = directory / TIMES
    self.times = {step: logged for step, logged in read_times(path).items() if step in steps}
    write_atomically(path, ''.join(_line(step, logged) for step, logged in self.times.items()))
    self._file = path.open('a', encoding='utf8')

  def write(self, step: int, train_seconds: float | None) -> Time:
    """Appends the current time for a row."""
    rounded = None if train_seconds is None else round(train_seconds, 6)
    logged = Time(round(time.time(), 3), rounded)
    self._file.write(_line(step, logged))
    self._file.flush()
    return logged

  def sync(self) -> None:
    """Writes all lines to the disk."""
    os.fsync(self._file.fileno())

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


def read_times(path: Path) -> dict[int, Time]:
  """The times in a times.jsonl, by step, without damaged or incomplete lines; empty if there is no such file."""
  if not path.exists():
    return {}
  rows = map(_parse, path.read_text('utf8', errors='replace').splitlines())
  return dict(filter(None, rows))


def _line(step: int, logged: Time) -> str:
  return json.dumps({'step': step, **logged._asdict()}) + '\n'


def _parse(line: str) -> tuple[int, Time] | None:
  """The step and time in a line; None if the line is damaged, since only figures depend on it."""
  try:
    row = json.loads(line)
    step, wall_time, seconds = row['step'], row['wall_time'], row['train_seconds']
  except (ValueError, KeyError, TypeError, RecursionError):
    return None
  if type(step) is not int or not _is_time(wall_time) or not (seconds is None or _is_time(seconds)):
    return None
  return step, Time(wall_time, seconds)


def _is_time(value: object) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
