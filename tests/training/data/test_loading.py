import itertools
import math
import re
import threading

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.config import ConfigError, DataConfig
from training.data import loading


def config_of(folder, text: bytes, **fields) -> DataConfig:
  (folder / 'text.txt').write_bytes(text)
  return DataConfig(task='files', paths=str(folder / 'text.txt'), **fields)


@pytest.fixture(scope='module')
def small(tmp_path_factory) -> loading.Data:
  """230 training sequences of 4 tokens, all different."""
  text = np.random.default_rng(0).integers(128, 256, 1024, np.uint8).tobytes()
  return loading.load(config_of(tmp_path_factory.mktemp('small'), text, sequence_length=4), batch_size=4)


def take(small, batch_size, seed, start, count, index=0, processes=1) -> list[np.ndarray]:
  own = np.split(np.arange(batch_size), processes)[index]
  batches = loading.train_batches(small, batch_size, seed, start, count, own)
  return [np.concatenate([batch['inputs_BT'], batch['targets_BT'][:, -1:]], axis=1) for batch in batches]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 40), st.sampled_from([1, 2, 4]), st.sampled_from([4, 32]))
def test_a_global_batch_depends_on_the_seed_and_the_step_alone(small, seed, start, processes, batch_size):
  from_zero = take(small, batch_size, seed, 0, start + 3)
  parts = [take(small, batch_size, seed, start, 3, index, processes) for index in range(processes)]
  for whole, *shares in zip(from_zero[start:], *parts, strict=True):
    assert all(len(share) == batch_size // processes for share in shares)
    np.testing.assert_array_equal(whole, np.concatenate(shares))


def test_each_epoch_has_every_sequence_once_in_an_order_of_its_own(small):
  every = [(*row['inputs_T'], row['targets_T'][-1]) for row in small.train]
  rows = [tuple(row) for batch in take(small, 20, 1, 0, 23) for row in batch]
  assert len(every) == len(set(every)) == 230
  first, second = rows[:230], rows[230:]
  assert sorted(first) == sorted(second) == sorted(every)
  assert len({tuple(order) for order in (every, first, second)}) == 3


def test_seeds_differ(small):
  assert len({take(small, 8, seed, 0, 1)[0].tobytes() for seed in range(10)}) == 10


def test_batches_need_no_threads(small):
  before = set(threading.enumerate())
  batches = loading.train_batches(small, 4, 0, 0, 100)
  next(batches)
  assert set(threading.enumerate()) <= before
  batches.close()
  assert list(batches) == []


def test_the_splits_are_disjoint_and_leave_out_only_what_they_must(tmp_path):
  block, num_bytes = 16384, 21 * 16384 + 100
  text = np.random.default_rng(1).integers(128, 256, num_bytes, np.uint8).tobytes()
  loaded = loading.load(config_of(tmp_path, text, sequence_length=1000), 16)
  assert (loaded.vocab_size, len(loaded.train)) == (256, 2 * (9 * block - 1) // 1000 + (block + 99) // 1000)
  for source, first in ((loaded.validation, 9 * block), (loaded.test, 19 * block)):
    scored = b''.join(row['targets_T'][row['weights_T'] > 0].astype(np.uint8).tobytes() for row in source)
    assert scored == text[first + 1 : first + block]


@given(st.integers(1, 40), st.none() | st.integers(1, 300))
def test_evaluation_batches_are_full_fixed_and_evenly_spread(small, batch_size, sequences):
  number = {tuple(row['inputs_T']): k for k, row in enumerate(small.train)}
  batches = list(loading.evaluation_batches(small.train, batch_size, sequences))
  assert all(batch['inputs_BT'].shape == (batch_size, 4) for batch in batches)
  weights = np.concatenate([batch['weights_BT'][:, 0] for batch in batches])
  inputs = np.concatenate([batch['inputs_BT'] for batch in batches])
  chosen = [number[tuple(row)] for row, weight in zip(inputs, weights, strict=True) if weight]
  count = min(230, sequences or 230)
  assert len(chosen) == count
  assert len(batches) == math.ceil(count / batch_size)
  assert np.all(weights[:count] == 1)
  gaps = np.diff([*chosen, 230 + chosen[0]])  # around the end: how evenly they lie
  assert gaps.min() >= 1
  assert gaps.max() - gaps.min() <= 1


def test_bits_per_byte(small):
  assert small.bits_per_byte(math.log(2) * 3, 'validation') == pytest.approx(3)
  synthetic = loading.load(DataConfig(task='copy'), batch_size=16)
  assert synthetic.bits_per_byte(1.0, 'validation') is None
  assert (synthetic.vocab_size, len(synthetic.train)) == (65, 2**20)


@pytest.mark.parametrize(
  ('length', 'sequence_length', 'batch_size', 'message'),
  [
    (200, 16, 16, 'has 11 training sequences of 16 tokens, too few for a batch of 16: set run.batch_size=11 or '),
    (200, 500, 16, 'has 0 training sequences of 500 tokens, too few for a batch of 16: set data.sequence_length=11'),
    (200, 12, 16, 'has 14 training sequences .*: set run.batch_size=14 or data.sequence_length=11$'),
    (200, 10**9, 1, 'has 0 training sequences .* set data.sequence_length=179'),
    (200, 1, 1000, 'has 179 training sequences .* set run.batch_size=179$'),
    (1, 1, 1, 'has 0 training sequences .* a batch of 1: give a longer text$'),
    (39, 1, 1, 'a text of 39 tokens is too short to hold any out'),
  ],
)
def test_a_text_too_short_names_what_would_fit(tmp_path, length, sequence_length, batch_size, message):
  config = config_of(tmp_path, b'x' * length, sequence_length=sequence_length)
  with pytest.raises(ConfigError, match=rf'^data\.paths=.*{message}') as error:
    loading.load(config, batch_size)
  for size in re.findall(r'run\.batch_size=(\d+)', str(error.value)):
    loading.load(config, int(size))
    with pytest.raises(ConfigError):
      loading.load(config, int(size) + 1)
  for size in re.findall(r'data\.sequence_length=(\d+)', str(error.value)):
    loading.load(config_of(tmp_path, b'x' * length, sequence_length=int(size)), batch_size)
    with pytest.raises(ConfigError):
      loading.load(config_of(tmp_path, b'x' * length, sequence_length=int(size) + 1), batch_size)


def test_forty_bytes_can_be_split(tmp_path):
  loaded = loading.load(config_of(tmp_path, b'x' * 40, sequence_length=1), 1)
  assert [len(source) for source in (loaded.train, loaded.validation, loaded.test)] == [35, 1, 1]


def test_kjv_is_the_default():
  loaded = loading.load(DataConfig(), 16)
  assert loaded.checksum == 'b2c26b8719b188f55c6953159f654b387bc34996654d7f6927ef07a565d2c6ac'
  assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (60585, 13 * 256, 13 * 256)
  weights = itertools.chain(row['weights_T'].sum() for row in loaded.validation)
  assert sum(weights) == 13 * 16383


@pytest.mark.parametrize('batch_size', [1, 3, 16])
def test_batches_are_those_of_grain_over_epochs(small, batch_size):
  """As grain's own batches were, which cannot be of one sequence."""
  order = grain.MapDataset.range(len(small.train)).seed(5).shuffle()
  epochs = [order.repeat()[position] for position in range(3 * len(small.train))]
  for step in (0, 1, 2 * len(small.train) // batch_size):
    (batch,) = loading.train_batches(small, batch_size, 5, step, 1)
    expected = small.train.batch(np.array(epochs[step * batch_size : (step + 1) * batch_size]))
    np.testing.assert_array_equal(batch['inputs_BT'], expected['inputs_BT'])
  if batch_size > 1:
    (batch,) = loading.train_batches(small, batch_size, 5, 2, 1)
    rows = np.asarray(order.repeat().batch(batch_size)[2])
    np.testing.assert_array_equal(batch['inputs_BT'], small.train.batch(rows)['inputs_BT'])


def test_the_last_steps_that_may_be_asked_for_have_batches(small):
  assert len(list(loading.train_batches(small, 1, 2**32 - 1, 2**31 - 3, 2))) == 2
