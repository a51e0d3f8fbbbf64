"""Norms over the last axis, computed in float32 for any input dtype."""

import jax
import jax.numpy as jnp
from flax import nnx

EPSILON = 1e-6


class RMSNorm(nnx.Module):
  """y = gain * x / sqrt(mean(x^2) + epsilon) (Zhang & Sennrich 2019, equation 4)."""

  def __init__(self, width: int):
    self.gain = nnx.Param(jnp.zeros(width))

  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalises the last axis.

    Args:
      x: (..., width), any float dtype.

    Returns:
      (..., width), float32.
    """
    return _rms_norm(x, self.gain[...])


class LayerNorm(nnx.Module):
  """y = gain * (x - mean(x)) / sqrt(var(x) + epsilon) + bias (Ba et al. 2016, equation 3); the bias is optional."""

  def __init__(self, width: int, use_bias: bool):
    self.gain = nnx.Param(jnp.zeros(width))
    self.bias = nnx.Param(jnp.zeros(width)) if use_bias else None

  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalises the last axis.

    Args:
      x: (..., width), any float dtype.

    Returns:
      (..., width), float32.
    """
    x = x.astype(jnp.float32)
    y = _rms_norm(x - jnp.mean(x, -1, keepdims=True), self.gain[...])
    return y if self.bias is None else y + self.bias[...]


@jax.checkpoint  # recomputing from x in the backward pass is as fast as reading stored activations
def _rms_norm(x, gain):
  x = x.astype(jnp.float32)
  return gain * x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + EPSILON)


def make_norm(kind: str, width: int, use_bias: bool) -> RMSNorm | LayerNorm:
  """The norm of this kind, `rms` or `layer`; only `layer` has a bias."""
  return RMSNorm(width) if kind == 'rms' else LayerNorm(width, use_bias)
