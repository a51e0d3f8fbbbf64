import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, random_stream

from model.position import rotate, sinusoidal


@pytest.mark.parametrize('width', [2, 4, 16])
def test_rotary_rotates_complex_numbers(width):
  x, exact = random_stream(2, 200, 3, width)
  for t in range(200):
    exact[:, t] = reference.rotate(exact[:, t], t)
  assert distance(rotate(x), exact) < 1e-5


def test_rotary_products_depend_only_on_relative_position():
  vectors = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
  q_TK, k_TK = (np.asarray(rotate(jnp.tile(vector, (1, 30, 1, 1))))[0, :, 0] for vector in vectors)
  products = q_TK @ k_TK.T
  for offset in (-7, -1, 0, 1, 12):
    diagonal = np.diagonal(products, offset)
    np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
  assert len({round(float(products[10, s]), 3) for s in range(30)}) > 20  # and they do depend on it


def test_rotary_preserves_norms_and_the_first_position():
  x, exact = random_stream(2, 50, 3, 8)
  np.testing.assert_array_equal(rotate(x)[:, 0], x[:, 0])
  np.testing.assert_allclose(np.linalg.norm(rotate(x), axis=-1), np.linalg.norm(exact, axis=-1), rtol=1e-5)


@pytest.mark.parametrize(('length', 'width'), [(1, 2), (7, 6), (200, 16)])
def test_sinusoidal_table_matches_its_formula(length, width):
  np.testing.assert_allclose(sinusoidal(length, width), reference.sinusoidal(length, width), atol=1e-5)
