import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, filled, random_stream, tiny

from model.activations import ACTIVATIONS, GATED
from model.feed_forward import FeedForward


@pytest.mark.parametrize('use_bias', [False, True])
@pytest.mark.parametrize('name', ACTIVATIONS)
def test_feed_forward_matches_the_reference(name, use_bias):
  module, params = filled(FeedForward(tiny(feed_forward=name, use_bias=use_bias)))
  assert set(params) == ({'gate', 'up', 'down'} if name in GATED else {'up', 'down'})
  assert ('bias' in params['down']) == use_bias
  x, exact = random_stream(2, 5, 8)
  assert distance(module(2 * x), reference.feed_forward(params, 2 * exact, name)) < 1e-6


def test_properties_of_the_activations():
  assert GATED == ('glu', 'swiglu', 'geglu', 'reglu', 'bilinear')
  x = jnp.linspace(-9, -0.1, 99)
  for name, activation in ACTIVATIONS.items():
    assert activation.rectified == bool((activation.function(x) == 0).all()), name


def test_positions_do_not_interact():
  module, _ = filled(FeedForward(tiny()))
  x, _ = random_stream(4, 8)
  jacobian = jax.jacobian(module)(x[None])[0, :, :, 0]  # (T, D, T, D)
  for t in range(4):
    np.testing.assert_array_equal(jacobian[t].any((0, 2)), np.arange(4) == t)
