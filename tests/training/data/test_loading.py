import math
import re

import numpy as np
import pytest

from training.config import ConfigError, DataConfig
from training.data.loading import load_splits


def config_with(folder, text: bytes, **fields) -> DataConfig:
  (folder / 'text.txt').write_bytes(text)
  return DataConfig(task='files', paths=str(folder / 'text.txt'), **fields)


def test_the_splits_are_disjoint_and_omit_only_the_first_token_of_each_segment(tmp_path):
  block, num_bytes = 16384, 21 * 16384 + 100
  text = np.random.default_rng(1).integers(128, 256, num_bytes, np.uint8).tobytes()
  loaded = load_splits(config_with(tmp_path, text, sequence_length=1000), 16)
  assert (loaded.vocab_size, len(loaded.train)) == (256, 2 * (9 * block - 1) // 1000 + (block + 99) // 1000)
  for dataset, first in ((loaded.validation, 9 * block), (loaded.test, 19 * block)):
    scored = b''.join(row['targets_T'][row['weights_T'] > 0].astype(np.uint8).tobytes() for row in dataset)
    assert scored == text[first + 1 : first + block]


def test_bits_per_byte(tmp_path):
  text = load_splits(config_with(tmp_path, b'x' * 40, sequence_length=1), 1)
  assert text.bits_per_byte(math.log(2) * 3, 'validation') == pytest.approx(3)
  synthetic = load_splits(DataConfig(task='copy'), batch_size=16)
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
    (1, 1, 1, 'has 0 training sequences .* a batch of 1: use a longer text$'),
    (39, 1, 1, 'a text of 39 tokens is too short for held-out splits: use a longer text$'),
  ],
)
def test_a_text_that_is_too_short_is_refused_with_the_sizes_that_fit(
  tmp_path, length, sequence_length, batch_size, message
):
  config = config_with(tmp_path, b'x' * length, sequence_length=sequence_length)
  with pytest.raises(ConfigError, match=rf'^data\.paths=.*{message}') as error:
    load_splits(config, batch_size)
  for size in re.findall(r'run\.batch_size=(\d+)', str(error.value)):
    load_splits(config, int(size))
    with pytest.raises(ConfigError):
      load_splits(config, int(size) + 1)
  for size in re.findall(r'data\.sequence_length=(\d+)', str(error.value)):
    load_splits(config_with(tmp_path, b'x' * length, sequence_length=int(size)), batch_size)
    with pytest.raises(ConfigError):
      load_splits(config_with(tmp_path, b'x' * length, sequence_length=int(size) + 1), batch_size)


def test_forty_bytes_are_enough(tmp_path):
  loaded = load_splits(config_with(tmp_path, b'x' * 40, sequence_length=1), 1)
  assert [len(dataset) for dataset in (loaded.train, loaded.validation, loaded.test)] == [35, 1, 1]


def test_the_default_is_kjv():
  loaded = load_splits(DataConfig(), 16)
  assert loaded.checksum == 'b2c26b8719b188f55c6953159f654b387bc34996654d7f6927ef07a565d2c6ac'
  assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (60585, 13 * 256, 13 * 256)
  assert sum(row['weights_T'].sum() for row in loaded.validation) == 13 * 16383
