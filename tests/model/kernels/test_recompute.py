import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import distance, filled, random_stream, tiny

from model.feed_forward import FeedForward
from model.kernels.recompute import recomputed


def function(weights, x, y):
  return (jnp.sin(x) * y) @ weights['kernel'] + weights['bias']


@pytest.mark.parametrize('axes', [(), (3,), (2, 3)])
def test_values_and_gradients_are_those_of_the_function(axes):
  (x, _), (y, _), (kernel, _) = (random_stream(*axes, 4, seed=1), random_stream(*axes, 4, seed=2), random_stream(4, 5))
  arguments = ({'kernel': kernel, 'bias': jnp.arange(5.0)}, x, y)
  value, back = jax.vjp(lambda *arguments: recomputed(function, *arguments), *arguments)
  expected, plain_back = jax.vjp(function, *arguments)
  np.testing.assert_array_equal(value, expected)
  cotangent = jnp.cos(value)
  for ours, plain in zip(jax.tree.leaves(back(cotangent)), jax.tree.leaves(plain_back(cotangent)), strict=True):
    assert distance(ours, plain) < 1e-6


def test_a_non_finite_cotangent_makes_every_gradient_non_finite():
  (x, _), (kernel, _) = random_stream(1, 4), random_stream(4, 5)
  _, back = jax.vjp(lambda x: recomputed(function, {'kernel': kernel, 'bias': jnp.zeros(5)}, x, x), x)
  assert not np.isfinite(back(jnp.full((1, 5), jnp.inf))[0]).any()


@pytest.mark.parametrize(('name', 'stored'), [('swiglu', 2), ('relu', 1)])
def test_a_feed_forward_stores_only_its_projections(name, stored):
  config = tiny(feed_forward=name, d_ff=7)
  module, _ = filled(FeedForward(config))
  x, _ = random_stream(2, 5, config.d_model)
  _, back = jax.vjp(module, x)
  assert sum(leaf.shape[-1:] == (7,) and leaf.size == 2 * 5 * 7 for leaf in jax.tree.leaves(back)) == stored
