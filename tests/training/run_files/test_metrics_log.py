import json
import math
import os
import struct
from pathlib import Path

import pytest
from event_files import read_events

from training.config import ConfigError
from training.digests import Damaged
from training.run_files.metrics_log import EMPTY, MetricsLog, check_mark, read_metrics

ROWS = {step: {'train/loss': 5 / step, 'grad_norm/global': 2.0**-step} for step in (1, 5, 10, 15)}


def write(directory: Path, rows: dict, mark=EMPTY) -> dict[int, dict]:
  """Writes rows after a mark; returns the mark after each by step, and the first one at 0."""
  with MetricsLog(directory, mark) as log:
    marks = {0: log.sync()}
    for step, row in rows.items():
      log.write(step, row)
      marks[step] = log.sync()
  return marks


def lines(directory: Path) -> list[dict]:
  """metrics.jsonl, by a strict reader."""

  def refuse(constant):
    raise ValueError(f'{constant} is not JSON')

  text = (directory / 'metrics.jsonl').read_text('utf8')
  assert text == '' or text.endswith('\n')
  return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def events(directory: Path) -> list[tuple[int, str, float]]:
  return read_events(directory / 'tensorboard')


def expected_events(rows: dict) -> list[tuple[int, str, float]]:
  return [
    (step, name, struct.unpack('f', struct.pack('f', value))[0])
    for step, row in rows.items()
    for name, value in row.items()
  ]


def test_one_object_per_step_with_the_step_first(tmp_path):
  write(tmp_path, ROWS)
  assert lines(tmp_path) == [{'step': step} | row for step, row in ROWS.items()]
  assert [next(iter(row)) for row in lines(tmp_path)] == ['step'] * 4
  assert (tmp_path / 'metrics.jsonl').read_text().count('\n') == 4


def test_the_event_files_have_the_same_numbers(tmp_path):
  write(tmp_path, ROWS)
  assert events(tmp_path) == expected_events(ROWS)


def test_a_number_that_is_not_finite_is_null(tmp_path):
  row = {'a': math.nan, 'b': math.inf, 'c': -math.inf, 'd': 1.5}
  marks = write(tmp_path, {3: row})
  assert lines(tmp_path) == [{'step': 3, 'a': None, 'b': None, 'c': None, 'd': 1.5}]
  write(tmp_path, {}, marks[3])
  assert lines(tmp_path) == [{'step': 3, 'a': None, 'b': None, 'c': None, 'd': 1.5}]
  found = events(tmp_path)
  assert [(step, name) for step, name, _ in found] == [(3, 'a'), (3, 'b'), (3, 'c'), (3, 'd')]
  assert [math.isnan(value) for *_, value in found] == [True, True, True, False]


def test_a_line_is_in_the_file_when_write_returns(tmp_path):
  with MetricsLog(tmp_path) as log:
    for count, (step, row) in enumerate(ROWS.items(), 1):
      log.write(step, row)
      assert len(lines(tmp_path)) == count


@pytest.mark.parametrize('last_step', [0, 1, 5, 10, 15])
def test_a_reopened_log_is_truncated_to_the_mark(tmp_path, last_step):
  marks = write(tmp_path, ROWS)
  (written,) = (tmp_path / 'tensorboard').iterdir()
  written.rename(written.with_name('events.out.tfevents.1.earlier'))  # named by the second
  kept = {step: row for step, row in ROWS.items() if step <= last_step}
  added = {last_step + 1: {'train/loss': 0.5}, last_step + 7: {'train/loss': 0.25, 'validation/loss': 0.125}}
  write(tmp_path, added, marks[last_step])
  assert lines(tmp_path) == [{'step': step} | row for step, row in (kept | added).items()]
  assert events(tmp_path) == expected_events(kept | added)


def test_a_log_reopened_at_the_empty_mark_is_empty(tmp_path):
  write(tmp_path, ROWS)
  write(tmp_path, {})
  assert lines(tmp_path) == events(tmp_path) == []


@pytest.mark.parametrize('cut', [1, 2, 20])
def test_an_incomplete_line_is_dropped(tmp_path, cut):
  marks = write(tmp_path, ROWS)
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(path.read_bytes()[:-cut])
  assert [row['step'] for row in read_metrics(path)] == [1, 5, 10]
  with pytest.raises(Damaged, match=r'metrics\.jsonl has changed'):
    MetricsLog(tmp_path, marks[15])
  write(tmp_path, {15: ROWS[15]}, marks[10])
  assert lines(tmp_path) == [{'step': step} | row for step, row in ROWS.items()]
  assert events(tmp_path) == expected_events(ROWS)


@pytest.mark.parametrize('end', [b'{"step": 20, "a', b'{"step": 20, "a": \xff}\n', b'\0\0\0', b'20\n', b'{"a": 1}\n'])
def test_a_damaged_end_is_truncated_with_a_note(tmp_path, end):
  marks = write(tmp_path, ROWS)
  path = tmp_path / 'metrics.jsonl'
  with path.open('ab') as file:
    file.write(end)
  with MetricsLog(tmp_path, marks[10]) as log:
    assert log.note == f'the end of {path} was damaged: truncated to the checkpoint'
  assert [row['step'] for row in lines(tmp_path)] == [1, 5, 10]
  with MetricsLog(tmp_path, marks[10]) as log:
    assert log.note is None


def test_a_mark_covers_the_lines_before_it(tmp_path):
  marks = write(tmp_path, ROWS)
  path = tmp_path / 'metrics.jsonl'
  for mark in marks.values():
    check_mark(path, mark)
  content = bytearray(path.read_bytes())
  content[marks[5]['bytes'] + 3] ^= 1
  path.write_bytes(content)
  check_mark(path, marks[5])
  for step in (10, 15):
    with pytest.raises(Damaged, match=r'metrics\.jsonl has changed in its first \d+ bytes'):
      check_mark(path, marks[step])
  path.unlink()
  check_mark(path, marks[0])
  with pytest.raises(Damaged, match='has changed'):
    check_mark(path, marks[1])


def test_the_lines_are_on_disk_before_a_mark_is_returned(tmp_path, monkeypatch):
  synced = []
  with MetricsLog(tmp_path) as log:
    log.write(1, ROWS[1])
    monkeypatch.setattr('os.fsync', lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    log.sync()
    assert events(tmp_path) == expected_events({1: ROWS[1]})
    monkeypatch.undo()
  assert synced[0] == (tmp_path / 'metrics.jsonl').stat().st_ino


def test_retained_lines_are_unchanged(tmp_path):
  marks = write(tmp_path, ROWS | {20: {'a': 0.1 + 0.2, 'b': 1e-300, 'c': math.nan, 'd': 123456789.0}})
  before = (tmp_path / 'metrics.jsonl').read_bytes()
  write(tmp_path, {}, marks[20])
  assert (tmp_path / 'metrics.jsonl').read_bytes() == before


def test_an_error_closes_the_log_with_its_lines(tmp_path):
  def fail():
    with MetricsLog(tmp_path) as log:
      log.write(1, ROWS[1])
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    fail()
  assert events(tmp_path) == expected_events({1: ROWS[1]})


def test_a_missing_log_has_no_rows(tmp_path):
  assert read_metrics(tmp_path / 'metrics.jsonl') == []


def test_a_damaged_line_is_named(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(b'{"step": 1}\n{"step": \xff}\n{"step": 3}\n')
  with pytest.raises(ConfigError, match=r'metrics\.jsonl, line 2 is damaged'):
    read_metrics(path)


def test_lists_are_logged_but_not_sent_to_tensorboard(tmp_path):
  rows = {1: {'train/loss': 5.0, 'by_position': [0.123456789, 2.0, math.nan, 1e-30]}}
  write(tmp_path, rows)
  assert lines(tmp_path) == [{'step': 1, 'train/loss': 5.0, 'by_position': [0.123457, 2.0, None, 1e-30]}]
  assert events(tmp_path) == [(1, 'train/loss', 5.0)]


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('{"step": 2, "train/loss": NaN}', 'NaN is not JSON'),
    ('{"step": 2, "train/loss": 1e999}', 'the number 1e999 is too large'),
    ('{"step": 2, "train/loss": 1, "train/loss": 2}', "'train/loss' occurs twice"),
    ('{"step": 2, "train/loss": "1"}', "'train/loss' is not a number"),
    ('{"step": 2, "train/loss": true}', "'train/loss' is not a number"),
    ('{"step": 2, "train/loss": {}}', "'train/loss' is not a number"),
    ('{"step": 2, "by_position": [1, [2]]}', "'by_position' is not a number"),
    ('{"step": 2, "train/loss": 1' + '0' * 400 + '}', "'train/loss' is not a number"),
    ('{"step": 2.5}', 'no step'),
    ('{"step": true}', 'no step'),
    ('{"step": -2}', 'no step'),
    ('{"step": 1}', 'step 1 after 1'),
    ('[2]', 'not a JSON object'),
    ('[' * 100_000, 'nested too deeply'),
    ('\0' * 40, 'Expecting value'),
  ],
)
def test_invalid_lines_are_damage(tmp_path, line, message):
  path = tmp_path / 'metrics.jsonl'
  path.write_text('{"step": 1}\n' + line + '\n{"step": 3}\n')
  with pytest.raises(Damaged) as error:
    read_metrics(path)
  assert f'metrics.jsonl, line 2 is damaged ({message}' in str(error.value)
  assert str(error.value).endswith('writes it again, from the last checkpoint before the change')
  assert '\n' not in str(error.value)
