"""A linear layer."""

import jax
import jax.numpy as jnp
from flax import nnx

from model.kernels.projection import project


class Linear(nnx.Module):
  """y = x W + b, computed in `dtype` from float32 parameters; the bias is optional."""

  def __init__(self, d_in: int, d_out: int, use_bias: bool, dtype: str):
    self.kernel = nnx.Param(jnp.zeros((d_in, d_out)))
    self.bias = nnx.Param(jnp.zeros(d_out)) if use_bias else None
    self.dtype = dtype

  def __call__(self, x: jax.Array) -> jax.Array:
    """Applies the layer to the last axis.

    Args:
      x: (..., d_in), any float dtype.

    Returns:
      (..., d_out) in `dtype`.
    """
    return project(x, [self])[0]
