import math
import threading

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.config import DataConfig
from training.data.batches import evaluation_batches, train_batches
from training.data.loading import Data, load_splits


@pytest.fixture(scope='module')
def small(tmp_path_factory) -> Data:
  """230 training sequences of 4 tokens, all different."""
  path = tmp_path_factory.mktemp('small') / 'text.txt'
  path.write_bytes(np.random.default_rng(0).integers(128, 256, 1024, np.uint8).tobytes())
  return load_splits(DataConfig(task='files', paths=str(path), sequence_length=4), batch_size=4)


def take(data, batch_size, seed, start, count, process=0, processes=1) -> list[np.ndarray]:
  """The sequences, of 5 tokens, in the rows of each batch that belong to a process."""
  rows = np.split(np.arange(batch_size), processes)[process]
  batches = train_batches(data, batch_size, seed, start, count, rows)
  return [np.concatenate([batch['inputs_BT'], batch['targets_BT'][:, -1:]], axis=1) for batch in batches]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 40), st.sampled_from([1, 2, 4]), st.sampled_from([4, 32]))
def test_a_global_batch_depends_only_on_the_seed_and_the_step(small, seed, start, processes, batch_size):
  from_zero = take(small, batch_size, seed, 0, start + 3)
  parts = [take(small, batch_size, seed, start, 3, process, processes) for process in range(processes)]
  for expected, *shares in zip(from_zero[start:], *parts, strict=True):
    assert all(len(share) == batch_size // processes for share in shares)
    np.testing.assert_array_equal(expected, np.concatenate(shares))


def test_each_epoch_has_every_sequence_once_in_a_new_order(small):
  every = [(*row['inputs_T'], row['targets_T'][-1]) for row in small.train]
  rows = [tuple(row) for batch in take(small, 20, 1, 0, 23) for row in batch]
  assert len(every) == len(set(every)) == 230
  first, second = rows[:230], rows[230:]
  assert sorted(first) == sorted(second) == sorted(every)
  assert len({tuple(order) for order in (every, first, second)}) == 3


def test_seeds_have_different_orders(small):
  assert len({take(small, 8, seed, 0, 1)[0].tobytes() for seed in range(10)}) == 10


def test_batches_are_assembled_without_threads(small):
  before = set(threading.enumerate())
  batches = train_batches(small, 4, 0, 0, 100)
  next(batches)
  assert set(threading.enumerate()) <= before
  batches.close()
  assert list(batches) == []


@given(st.integers(1, 40), st.none() | st.integers(1, 300))
def test_evaluation_batches_are_full_fixed_and_evenly_spread(small, batch_size, sequences):
  number = {tuple(row['inputs_T']): k for k, row in enumerate(small.train)}
  batches = list(evaluation_batches(small.train, batch_size, sequences))
  assert all(batch['inputs_BT'].shape == (batch_size, 4) for batch in batches)
  weights = np.concatenate([batch['weights_BT'][:, 0] for batch in batches])
  inputs = np.concatenate([batch['inputs_BT'] for batch in batches])
  chosen = [number[tuple(row)] for row, weight in zip(inputs, weights, strict=True) if weight]
  count = min(230, sequences or 230)
  assert len(chosen) == count
  assert len(batches) == math.ceil(count / batch_size)
  assert np.all(weights[:count] == 1)
  gaps = np.diff([*chosen, 230 + chosen[0]])  # the last gap wraps around the end
  assert gaps.min() >= 1
  assert gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize('batch_size', [1, 3, 16])
def test_the_order_is_that_of_grain_over_epochs(small, batch_size):
  """The batches of grain itself have the same order; it does not support batches of one sequence."""
  order = grain.MapDataset.range(len(small.train)).seed(5).shuffle()
  epochs = [order.repeat()[position] for position in range(3 * len(small.train))]
  for step in (0, 1, 2 * len(small.train) // batch_size):
    (batch,) = train_batches(small, batch_size, 5, step, 1)
    expected = small.train.batch(np.array(epochs[step * batch_size : (step + 1) * batch_size]))
    np.testing.assert_array_equal(batch['inputs_BT'], expected['inputs_BT'])
  if batch_size > 1:
    (batch,) = train_batches(small, batch_size, 5, 2, 1)
    rows = np.asarray(order.repeat().batch(batch_size)[2])
    np.testing.assert_array_equal(batch['inputs_BT'], small.train.batch(rows)['inputs_BT'])


def test_the_largest_seed_and_step_have_batches(small):
  assert len(list(train_batches(small, 1, 2**32 - 1, 2**31 - 3, 2))) == 2
