"""Norms over the last axis, in float32 whatever comes in."""

import jax
import jax.numpy as jnp
from flax import nnx

EPSILON = 1e-6


class RMSNorm(nnx.Module):
  """y = gain * x / sqrt(mean(x^2) + epsilon) (Zhang & Sennrich 2019, equation 4)."""

  def __init__(self, width: int):
    self.gain = nnx.Param(jnp.zeros(width))

  def __call__(self, x: jax.Array) -> jax.Array:
    return _normalised(x, self.gain[...])


class LayerNorm(nnx.Module):
  """y = gain * (x - mean(x)) / sqrt(var(x) + epsilon) + bias (Ba et al. 2016, equation 3); the bias is optional."""

  def __init__(self, width: int, use_bias: bool):
    self.gain = nnx.Param(jnp.zeros(width))
    self.bias = nnx.Param(jnp.zeros(width)) if use_bias else None

  def __call__(self, x: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    y = _normalised(x - jnp.mean(x, -1, keepdims=True), self.gain[...])
    return y if self.bias is None else y + self.bias[...]


@jax.checkpoint  # a pass over x again in the backward pass takes no longer than reading what it would have kept
def _normalised(x, gain):
  x = x.astype(jnp.float32)
  return gain * x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + EPSILON)


def make_norm(kind: str, width: int, use_bias: bool) -> RMSNorm | LayerNorm:
  """The norm of this kind (`rms` or `layer`); a bias goes with `layer` alone."""
  return RMSNorm(width) if kind == 'rms' else LayerNorm(width, use_bias)
