import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.corpus import Segment
from training.data.windows import Windows

LAYOUTS = st.lists(st.integers(0, 30), min_size=1, max_size=5)


def windows_of(lengths: list[int], sequence_length: int, partial: bool) -> tuple[Windows, list[Segment]]:
  """Windows over tokens whose ids are their positions, counted from 1; padding is 0."""
  stops = np.cumsum(lengths).tolist()
  segments = [Segment('train', stop - n, stop, max(n - 1, 0)) for n, stop in zip(lengths, stops, strict=True)]
  return Windows(np.arange(1, 200, dtype=np.uint16), segments, sequence_length, partial), segments


@given(LAYOUTS, st.integers(1, 12))
def test_evaluation_scores_each_token_once_except_the_first_of_each_segment(lengths, sequence_length):
  windows, segments = windows_of(lengths, sequence_length, partial=True)
  rows = list(windows)
  assert len(rows) == len(windows)
  scored = [row['targets_T'][row['weights_T'] > 0].tolist() for row in rows]
  assert list(itertools.chain(*scored)) == [position + 1 for s in segments for position in range(s.start + 1, s.stop)]
  for row, targets in zip(rows, scored, strict=True):
    inside = len(targets)
    assert 0 < inside <= sequence_length
    assert row['inputs_T'][:inside].tolist() == [target - 1 for target in targets]
    assert not row['targets_T'][inside:].any()
    assert any(s.start < row['inputs_T'][0] and targets[-1] <= s.stop for s in segments)


@given(LAYOUTS, st.integers(1, 12))
def test_training_uses_every_full_window(lengths, sequence_length):
  windows, segments = windows_of(lengths, sequence_length, partial=False)
  expected = []
  for segment in segments:
    start = segment.start + 1
    while start + sequence_length <= segment.stop:
      expected.append(list(range(start, start + sequence_length + 1)))
      start += sequence_length
  assert [[*row['inputs_T'].tolist(), row['targets_T'][-1]] for row in windows] == expected
  assert all(row['weights_T'].all() and (row['targets_T'] == row['inputs_T'] + 1).all() for row in windows)


def test_a_batch_has_the_requested_rows():
  windows, _ = windows_of([20, 9], 4, partial=True)
  rows = np.array([6, 0, 4])
  for name, array in windows.batch(rows).items():
    np.testing.assert_array_equal(array, [windows[row][name.replace('_BT', '_T')] for row in rows])
    assert array.dtype == (np.float32 if name == 'weights_BT' else np.int32)
  for row in (-1, len(windows)):
    with pytest.raises(IndexError):
      windows[row]
