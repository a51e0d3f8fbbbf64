"""A matrix product over the last axis."""

import jax
import jax.numpy as jnp
from flax import nnx


class Linear(nnx.Module):
  """y = x W + b, computed in `dtype` from float32 parameters; the bias is optional.

  The leading axes are flattened into one before the product: on a CPU, XLA hands a plain matrix product to its
  fastest kernel and a batched one to a slower loop.
  """

  def __init__(self, d_in: int, d_out: int, use_bias: bool, dtype: str):
    self.kernel = nnx.Param(jnp.zeros((d_in, d_out)))
    self.bias = nnx.Param(jnp.zeros(d_out)) if use_bias else None
    self.dtype = dtype

  def __call__(self, x: jax.Array) -> jax.Array:
    flat = x.reshape(-1, x.shape[-1]).astype(self.dtype)
    y = flat @ self.kernel[...].astype(self.dtype)
    if self.bias is not None:
      y = y + self.bias[...].astype(self.dtype)
    return y.reshape(*x.shape[:-1], y.shape[-1])
