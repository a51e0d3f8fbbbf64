"""A matrix product over the last axis."""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx


class Linear(nnx.Module):
  """y = x W + b, computed in `dtype` from float32 parameters; the bias is optional."""

  def __init__(self, d_in: int, d_out: int, use_bias: bool, dtype: str):
    self.kernel = nnx.Param(jnp.zeros((d_in, d_out)))
    self.bias = nnx.Param(jnp.zeros(d_out)) if use_bias else None
    self.dtype = dtype

  def __call__(self, x: jax.Array) -> jax.Array:
    return project(x, [self])[0]


def project(x: jax.Array, *groups: Sequence[Linear]) -> list[jax.Array]:
  """What each of these makes of x; those of a group by one product, with their kernels side by side.

  A wide product is quicker than several narrow ones, above all in the backward pass. The leading axes are flattened
  into one first: on a CPU, XLA hands a plain matrix product to its fastest kernel and a batched one to a slower loop.
  """
  flat = x.reshape(-1, x.shape[-1]).astype(groups[0][0].dtype)
  outputs = []
  for group in groups:
    kernels = [linear.kernel[...] for linear in group]
    y = flat @ jnp.concatenate(kernels, 1).astype(flat.dtype)
    biases = [linear.bias[...] for linear in group if linear.bias is not None]
    if biases:
      y = y + jnp.concatenate(biases).astype(flat.dtype)
    ends = itertools.accumulate(kernel.shape[1] for kernel in kernels[:-1])
    outputs += [part.reshape(*x.shape[:-1], part.shape[-1]) for part in jnp.split(y, list(ends), 1)]
  return outputs
