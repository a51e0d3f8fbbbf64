"""Computes several linear layers of one input as fewer and wider matrix products."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
  from model.linear import Linear


def project(x: jax.Array, *groups: 'Sequence[Linear]') -> list[jax.Array]:
  """Applies linear layers to one input; by definition `[x @ W + b for each layer]`.

  The layers of a group are computed by one product with their concatenated kernels: a wide product is faster than
  several narrow ones, especially in the backward pass. Leading axes are first flattened into one: on a CPU, XLA uses
  its fastest kernel for a plain matrix product, and a slower loop for a batched one.

  Args:
    x: (..., d_in), any float dtype; cast to that of the layers.
    *groups: layers from d_in, each with a `kernel` (d_in, d_out), an optional `bias` (d_out,) and the same `dtype`.

  Returns:
    For each layer, in order, (..., d_out) in its dtype.
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
