import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.measures import forward_measures, gradient_measures

OUTPUT = np.array([16.0, 0.0, 0.0])


def paths(products) -> dict[str, np.ndarray]:
  """The measures of one layer whose two sublayers have the same products."""
  return gradient_measures({'blocks': np.array([[products, products]]), 'output': OUTPUT})


def first(products) -> dict[str, float]:
  return {name: float(values[0, 0]) for name, values in paths(products).items() if name not in ('output', 'gain')}


@given(st.integers(0, 2**32), st.integers(1, 20), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_gradient_measures_equal_those_of_the_vectors(seed, size, skip_size, branch_size):
  skip, branch = np.random.default_rng(seed).normal(size=(2, size)) * [[skip_size], [branch_size]]
  found = first([skip @ skip, branch @ branch, skip @ branch])
  assert found.keys() == {'total', 'skip', 'branch', 'cosine'}
  assert found['skip'] == pytest.approx(np.linalg.norm(skip))
  assert found['branch'] == pytest.approx(np.linalg.norm(branch))
  longer = max(found['skip'], found['branch'])
  assert found['total'] == pytest.approx(np.linalg.norm(skip + branch), abs=1e-6 * longer)
  assert found['cosine'] == pytest.approx(skip @ branch / np.linalg.norm(skip) / np.linalg.norm(branch))


def test_cancelling_paths_have_a_total_of_zero():
  assert first([4.0, 4.0, -4.0]) == {'total': 0.0, 'skip': 2.0, 'branch': 2.0, 'cosine': -1.0}
  assert first(np.float32([4.0, 4.0, -4.0001]))['total'] == 0.0  # negative by rounding


def test_the_cosine_with_a_zero_path_is_zero():
  assert first([9.0, 0.0, 0.0]) == {'total': 3.0, 'skip': 3.0, 'branch': 0.0, 'cosine': 0.0}
  assert first([0.0, 9.0, 0.0]) == {'total': 3.0, 'skip': 0.0, 'branch': 3.0, 'cosine': 0.0}


@pytest.mark.filterwarnings('ignore:invalid value')
@pytest.mark.parametrize('products', [[math.nan] * 3, [math.inf, 1.0, 0.0], [1.0, math.inf, math.nan]])
def test_nonfinite_numbers_stay_nonfinite(products):
  found = first(products)
  assert not math.isfinite(found['total'])
  assert {name for name in ('skip', 'branch') if math.isfinite(found[name])} == {
    name for name, product in zip(('skip', 'branch'), products, strict=False) if math.isfinite(product)
  }


def test_the_gain_is_the_total_over_that_at_the_output():
  """From the output down, the totals are 4 (output), 2, 6, 0 and 5 (the attention of layer 0)."""
  squares = np.array([[25.0, 0.0], [36.0, 4.0]])
  products = np.stack([squares, 0 * squares, 0 * squares], -1)
  found = gradient_measures({'blocks': products, 'output': OUTPUT})
  np.testing.assert_allclose(found['gain'], [[math.nan, 0], [3, 0.5]])
  assert found['output'] == 4


def test_positions_are_separate():
  products = np.random.default_rng(0).random((3, 2, 5, 3))
  output = np.random.default_rng(1).random((5, 3))
  found = gradient_measures({'blocks': products, 'output': output})
  for t in range(5):
    alone = gradient_measures({'blocks': products[:, :, t], 'output': output[t]})
    for name, values in alone.items():
      np.testing.assert_array_equal(found[name][..., t], values)


def both(attention, feed_forward):
  return {'attention': np.array(attention), 'feed_forward': np.array(feed_forward)}


def test_forward_measures():
  """One layer; the stream is (6, 8), and the branches add (4, 3) and 0."""
  seen = {
    'mean': {
      'stream_square': both([49.0], [4.0]),
      'input_square': both([50.0], [50.0]),
      'branch_square': both([12.5], [0.0]),
      'branch_inner': both([24.0], [0.0]),
      'relative_residual': both([0.25], [0.5]),
      'attention_entropy': np.array([[0.5, 0.75]]),
    },
    'max': {'largest_logit': np.array([[2.0, 3.0]]), 'active_units': np.array([[1.0, 0.0, 1.0, 1.0]])},
  }
  found = {name: values.tolist() for name, values in forward_measures(seen).items()}
  assert found == {
    'stream_rms': [[7.0, 2.0]],
    'branch_rms': [[12.5**0.5, 0.0]],
    'branch_ratio': [[0.5, 0.0]],
    'branch_cosine': [[0.96, 0.0]],
    'relative_residual': [[0.25, 0.5]],
    'attention_entropy': [[0.5, 0.75]],
    'largest_logit': [[2.0, 3.0]],
    'silent_units': [0.25],
  }
  plain = {'mean': {'stream_square': seen['mean']['stream_square']}, 'max': {}}
  assert {name: values.tolist() for name, values in forward_measures(plain).items()} == {'stream_rms': [[7.0, 2.0]]}
