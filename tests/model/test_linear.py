import jax.numpy as jnp
import numpy_reference as reference
import pytest
from tiny_models import distance, filled, random_stream

from model.linear import Linear, project


@pytest.mark.parametrize('use_bias', [False, True])
@pytest.mark.parametrize('axes', [(), (5,), (2, 5), (2, 3, 5)])
def test_linear_by_hand(axes, use_bias):
  linear, params = filled(Linear(8, 6, use_bias, 'float32'))
  assert set(params) == ({'kernel', 'bias'} if use_bias else {'kernel'})
  x, exact = random_stream(*axes, 8)
  assert distance(linear(x), reference.linear(params, exact)) < 1e-6


def test_bfloat16_products_come_from_float32_parameters():
  linear = Linear(64, 64, True, 'bfloat16')
  assert linear.kernel[...].dtype == linear.bias[...].dtype == jnp.float32
  linear, params = filled(linear)
  x, exact = random_stream(4, 64)
  assert linear(x).dtype == jnp.bfloat16
  assert 1e-4 < distance(linear(x), reference.linear(params, exact)) < 1e-2


@pytest.mark.parametrize('use_bias', [False, True])
@pytest.mark.parametrize('sizes', [[3], [2, 1], [1, 2], [1, 1, 1]])
def test_in_groups_each_gives_what_it_gives_alone(use_bias, sizes):
  linears, params = zip(*(filled(Linear(8, width, use_bias, 'float32')) for width in (6, 1, 4)), strict=True)
  x, exact = random_stream(2, 3, 8)
  rest = iter(linears)
  parts = project(x, *[[next(rest) for _ in range(size)] for size in sizes])
  for part, own in zip(parts, params, strict=True):
    assert distance(part, reference.linear(own, exact)) < 1e-6
