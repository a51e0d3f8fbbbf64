"""The times of logged rows: across resumes, in the TensorBoard files, and in the table of metrics."""

import json
import time
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from lab.analysis.results import load_metrics
from training.run_files.metrics_log import EMPTY, MetricsLog
from training.run_files.times import TIMES, Time, read_times


def wall_times(directory: Path) -> dict[int, float]:
  """The times in TensorBoard files; each record has a length, its checksum of 4 bytes, the event, its checksum."""
  found = {}
  for path in (directory / 'tensorboard').iterdir():
    content, offset = path.read_bytes(), 0
    while offset < len(content):
      length = int.from_bytes(content[offset : offset + 8], 'little')
      event = Event.FromString(content[offset + 12 : offset + 12 + length])
      offset += length + 16
      if event.summary.value:
        found[event.step] = event.wall_time
  return found


@pytest.fixture
def clock(monkeypatch):
  """A clock that starts at 1000 and is advanced manually."""
  now = [1000.0]
  monkeypatch.setattr(time, 'time', lambda: now[0])
  return now


def write(directory: Path, steps: list[int], clock, mark=EMPTY):
  with MetricsLog(directory, mark) as log:
    for step in steps:
      clock[0] += 1.5
      log.write(step, {'loss': 1.0}, float(step))
    return log.sync()


def test_a_row_keeps_its_time_when_the_run_resumes(tmp_path, clock):
  mark = write(tmp_path, [1, 5], clock)
  write(tmp_path, [10], clock, mark)  # truncated when the log is reopened
  clock[0] = 9000.0
  write(tmp_path, [11], clock, mark)
  expected = {1: 1001.5, 5: 1003.0, 11: 9001.5}
  assert wall_times(tmp_path) == expected
  assert read_times(tmp_path / TIMES) == {step: Time(wall, float(step)) for step, wall in expected.items()}
  metrics = load_metrics(tmp_path)
  assert metrics['wall_time'].to_dict() == expected
  assert metrics['train_seconds'].tolist() == [1.0, 5.0, 11.0]
  assert [json.loads(line) for line in (tmp_path / 'metrics.jsonl').read_text().splitlines()] == [
    {'step': step, 'loss': 1.0} for step in expected
  ]


def test_rows_without_a_time_have_that_of_the_file(tmp_path, clock):
  mark = write(tmp_path, [1, 5], clock)
  (tmp_path / TIMES).unlink()
  written = (tmp_path / 'metrics.jsonl').stat().st_mtime
  write(tmp_path, [10], clock, mark)
  assert wall_times(tmp_path) == {1: written, 5: written, 10: 1004.5}
  assert load_metrics(tmp_path)['wall_time'].dropna().to_dict() == {10: 1004.5}


@pytest.mark.parametrize(
  'damaged',
  ['{"step": 5, "wall', '\x00\x00', '[5]', '{"step": 5, "wall_time": NaN, "train_seconds": 1}', '[' * 100_000],
)
def test_a_damaged_time_does_not_affect_others(tmp_path, clock, damaged):
  mark = write(tmp_path, [1, 5], clock)
  path = tmp_path / TIMES
  first, _ = path.read_text().splitlines()
  path.write_text(f'{first}\n{damaged}\n')
  assert list(read_times(path)) == [1]
  write(tmp_path, [10], clock, mark)
  assert list(read_times(path)) == [1, 10]
  assert load_metrics(tmp_path)['train_seconds'].dropna().to_dict() == {1: 1.0, 10: 10.0}
