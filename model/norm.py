"""Norms over the last axis, by name; computed in float32 for any input dtype."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from model.field_checks import ConfigError
from model.registry import Registry

EPSILON = 1e-6
Norm = Any  # a module that maps (..., width) to (..., width), float32
Kind = TypeVar('Kind', bound=type[nnx.Module])

NORMS: Registry[Callable[[int, bool], Norm]] = Registry('norm')


def norm(name: str) -> Callable[[Kind], Kind]:
  """Registers a class of norms: `@norm('my_norm')`, for `model.norm=my_norm`.

  The class is an nnx.Module with the constructor arguments (width, use_bias), whose call maps (..., width) of any float
  dtype to (..., width) in float32. It is used for every norm of the model: those of the connections, the embedding
  norm, the final norm, and those of queries and keys over head_dim. Parameters named `gain` start at 1 and `bias` at 0;
  others start at the values of the constructor. The first line of its docstring is shown by --helpfull.

  Raises:
    ConfigError: if the class is not an nnx.Module, has no `__call__`, or the name is taken or malformed.
  """

  def register(kind: Kind) -> Kind:
    if not (isinstance(kind, type) and issubclass(kind, nnx.Module) and '__call__' in dir(kind)):
      raise ConfigError(f'norm {name!r}: must be a subclass of flax.nnx.Module with a method __call__')
    NORMS.add(name, kind, kind)
    return kind

  return register


@norm('rms')
class RMSNorm(nnx.Module):
  """y = gain * x / sqrt(mean(x^2) + epsilon) (Zhang & Sennrich 2019, equation 4); never a bias."""

  def __init__(self, width: int, use_bias: bool = False):
    del use_bias
    self.gain = nnx.Param(jnp.zeros(width))

  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalises the last axis.

    Args:
      x: (..., width), any float dtype.

    Returns:
      (..., width), float32.
    """
    return _rms_norm(x, self.gain[...])


@norm('layer')
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


class _Bounded(nnx.Module):
  """gain * f(alpha x) + bias: an elementwise substitute for a norm, without any reduction over the width.

  Scaling x changes the output. There is always a bias, as in the papers, whether the model has biases or not.
  """

  def __init__(self, width: int, use_bias: bool = True):
    del use_bias
    self.alpha = nnx.Param(jnp.full((), 0.5))
    self.gain = nnx.Param(jnp.ones(width))
    self.bias = nnx.Param(jnp.zeros(width))


@norm('dyt')
class DyT(_Bounded):
  """y = gain * tanh(alpha x) + bias, the scalar alpha from 0.5 (Zhu et al. 2025, equation 1)."""

  def __call__(self, x: jax.Array) -> jax.Array:
    """Squashes each element of (..., width), any float dtype; returns float32."""
    return _bounded(jnp.tanh, x, self.alpha[...], jnp.float32(0), self.gain[...]) + self.bias[...]


@norm('derf')
class Derf(_Bounded):
  """y = gain * erf(alpha x + shift) + bias, the scalars alpha from 0.5 and shift from 0 (Chen et al. 2025)."""

  def __init__(self, width: int, use_bias: bool = True):
    super().__init__(width, use_bias)
    self.shift = nnx.Param(jnp.zeros(()))

  def __call__(self, x: jax.Array) -> jax.Array:
    """Squashes each element of (..., width), any float dtype; returns float32."""
    return _bounded(jax.lax.erf, x, self.alpha[...], self.shift[...], self.gain[...]) + self.bias[...]


@functools.partial(jax.checkpoint, static_argnums=0)  # stores x rather than both products
def _bounded(f, x, alpha, shift, gain):
  return gain * f(alpha * x.astype(jnp.float32) + shift)


def make_norm(kind: str, width: int, use_bias: bool) -> Norm:
  """A norm of this kind, a name in NORMS."""
  return NORMS[kind](width, use_bias)
