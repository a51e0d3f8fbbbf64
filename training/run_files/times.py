"""times.jsonl: when each row of metrics.jsonl was logged.

In a file of its own: a run that is repeated, or resumed, logs the same metrics to the byte, at other times.
"""

import json
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

from training.files import write_atomically

NAME = 'times.jsonl'


class Time(NamedTuple):
  """When a row was logged.

  Attributes:
    wall_time: seconds since the epoch.
    train_seconds: that the run has spent in training steps, over all its starts; compilation, evaluation and
      checkpoints are left out. None where a start that kept no times came before.
  """

  wall_time: float
  train_seconds: float | None


class TimesLog:
  """Appends one JSON object per row of the log: {"step", "wall_time", "train_seconds"}."""

  def __init__(self, directory: Path, steps: set[int]):
    """Opens times.jsonl of a run, and drops what is not of these steps, or is no longer readable."""
    path = directory / NAME
    self.kept = {step: logged for step, logged in read_times(path).items() if step in steps}
    write_atomically(path, ''.join(_line(step, logged) for step, logged in self.kept.items()))
    self._file = path.open('a', encoding='utf8')

  def write(self, step: int, train_seconds: float | None) -> Time:
    """Adds a row's time, which is now."""
    rounded = None if train_seconds is None else round(train_seconds, 6)
    logged = Time(round(time.time(), 3), rounded)
    self._file.write(_line(step, logged))
    self._file.flush()
    return logged

  def sync(self) -> None:
    """Has all of it on the disk."""
    os.fsync(self._file.fileno())

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


def read_times(path: Path) -> dict[int, Time]:
  """The times in a times.jsonl, by step; lines that are damaged or cut short are left out, none where it is missing."""
  if not path.exists():
    return {}
  rows = map(_parse, path.read_text('utf8', errors='replace').splitlines())
  return dict(filter(None, rows))


def _line(step: int, logged: Time) -> str:
  return json.dumps({'step': step, **logged._asdict()}) + '\n'


def _parse(line: str) -> tuple[int, Time] | None:
  """The step and time of a line; None if it is no such line: of a time nothing but figures and axes depend."""
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
