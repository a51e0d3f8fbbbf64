import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, filled, random_stream

from model.norm import LayerNorm, make_norm


@pytest.mark.parametrize('size', [1.0, 1e-3, 1e4])  # at 1e-3 the mean square is as small as epsilon
@pytest.mark.parametrize(('kind', 'use_bias'), [('rms', False), ('rms', True), ('layer', False), ('layer', True)])
def test_norm_matches_the_reference(kind, use_bias, size):
  norm, params = filled(make_norm(kind, 12, use_bias))
  assert set(params) == ({'gain', 'bias'} if kind == 'layer' and use_bias else {'gain'})
  x, exact = random_stream(3, 5, 12)
  x, exact = size * (x + 2), size * (exact + 2)  # a mean far from 0, where the two kinds differ
  assert distance(norm(x), reference.norm(params, exact, kind)) < 1e-6


@pytest.mark.parametrize('kind', ['rms', 'layer'])
def test_a_constant_input_stays_finite(kind):
  norm, params = filled(make_norm(kind, 12, True))
  np.testing.assert_allclose(norm(jnp.zeros((2, 12))), np.broadcast_to(params.get('bias', 0), (2, 12)), atol=1e-6)
  assert np.isfinite(norm(jnp.full((2, 12), 3.0))).all()


@pytest.mark.parametrize('kind', ['rms', 'layer'])
def test_norms_compute_in_float32(kind):
  norm, params = filled(make_norm(kind, 64, True))
  x = (random_stream(4, 64)[0] + 2).astype(jnp.bfloat16)
  assert norm(x).dtype == jnp.float32
  assert distance(norm(x), reference.norm(params, np.asarray(x, np.float64), kind)) < 1e-6


@pytest.mark.parametrize('width', [3, 8])
def test_jacobian_of_layer_norm(width):
  """Xiong et al. 2020, lemma 3: its spectral norm is sqrt(d) over the norm of the centred input."""
  module, _ = filled(LayerNorm(width, use_bias=False))
  module.gain[...] = jnp.ones(width)
  x, exact = random_stream(width, seed=3)
  largest = np.linalg.svd(np.asarray(jax.jacobian(module)(5 * x)), compute_uv=False)[0]
  centred = 5 * (exact - exact.mean())
  assert largest == pytest.approx(np.sqrt(width) / np.linalg.norm(centred), rel=1e-4)
