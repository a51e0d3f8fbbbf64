import numpy_reference as reference
import pytest
from tiny_models import distance, filled, random_stream

from model.kernels.projection import project
from model.linear import Linear


@pytest.mark.parametrize('use_bias', [False, True])
@pytest.mark.parametrize('sizes', [[3], [2, 1], [1, 2], [1, 1, 1]])
def test_each_layer_of_a_group_matches_the_reference(use_bias, sizes):
  linears, params = zip(*(filled(Linear(8, width, use_bias, 'float32')) for width in (6, 1, 4)), strict=True)
  x, exact = random_stream(2, 3, 8)
  rest = iter(linears)
  parts = project(x, *[[next(rest) for _ in range(size)] for size in sizes])
  for part, own in zip(parts, params, strict=True):
    assert distance(part, reference.linear(own, exact)) < 1e-6
