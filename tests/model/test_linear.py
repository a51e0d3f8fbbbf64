import jax.numpy as jnp
import numpy_reference as reference
import pytest
from tiny_models import distance, filled, random_stream

from model.linear import Linear


@pytest.mark.parametrize('use_bias', [False, True])
@pytest.mark.parametrize('axes', [(), (5,), (2, 5), (2, 3, 5)])
def test_linear_matches_the_reference(axes, use_bias):
  linear, params = filled(Linear(8, 6, use_bias, 'float32'))
  assert set(params) == ({'kernel', 'bias'} if use_bias else {'kernel'})
  x, exact = random_stream(*axes, 8)
  assert distance(linear(x), reference.linear(params, exact)) < 1e-6


def test_a_bfloat16_layer_has_float32_parameters():
  linear = Linear(64, 64, True, 'bfloat16')
  assert linear.kernel[...].dtype == linear.bias[...].dtype == jnp.float32
  linear, params = filled(linear)
  x, exact = random_stream(4, 64)
  assert linear(x).dtype == jnp.bfloat16
  assert 1e-4 < distance(linear(x), reference.linear(params, exact)) < 1e-2
