import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.splits import split_text

BLOCK = 16384


@given(st.integers(20 * BLOCK, 70 * BLOCK) | st.integers(20, 70).map(lambda blocks: blocks * BLOCK))
def test_every_byte_belongs_to_the_split_of_its_block(num_bytes):
  names = ['train'] * 9 + ['validation'] + ['train'] * 9 + ['test']
  spans = split_text(num_bytes)
  assert (spans[0].start, spans[-1].stop) == (0, num_bytes)
  for span in spans:
    blocks = np.unique(np.arange(span.start, span.stop, 512) // BLOCK)
    assert {names[block % 20] for block in blocks} == {span.split}
    assert span.start % BLOCK == 0
  for one, other in itertools.pairwise(spans):
    assert one.stop == other.start
    assert one.split != other.split


@pytest.mark.parametrize(
  ('num_bytes', 'bounds'), [(1, (1, 1)), (100, (90, 95)), (119, (108, 114)), (20 * BLOCK - 1, (294912, 311296))]
)
def test_a_short_text_ends_with_validation_and_test(num_bytes, bounds):
  spans = split_text(num_bytes)
  assert spans == [('train', 0, bounds[0]), ('validation', *bounds), ('test', bounds[1], num_bytes)]
  assert {span.split for span in split_text(20 * BLOCK)} == {'train', 'validation', 'test'}
