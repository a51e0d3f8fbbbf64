"""The activations of the feed-forward branch, by name."""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from model.field_checks import ConfigError
from model.registry import Registry

Elementwise = Callable[[jax.Array], jax.Array]


class Activation(NamedTuple):
  """An activation of the feed-forward branch.

  Attributes:
    function: elementwise, any shape and dtype; applied to up(x), or to gate(x) if gated.
    gated: whether its output multiplies up(x), as in the GLU variants of Shazeer 2020.
    rectified: whether it is 0 for every negative input, so that a unit can be dead.
  """

  function: Elementwise
  gated: bool = False
  rectified: bool = False


ACTIVATIONS: Registry[Activation] = Registry('activation')


def activation(name: str, gated: bool = False, rectified: bool = False) -> Callable[[Elementwise], Elementwise]:
  """Registers an elementwise function: `@activation('my_relu')`, for `model.feed_forward=my_relu`.

  The first line of its docstring is shown by --helpfull.

  Args:
    name: the name.
    gated: whether its output multiplies up(x); see Activation.
    rectified: whether it is 0 for every negative input.

  Raises:
    ConfigError: if it is not a function, or the name is taken or malformed.
  """

  def register(function: Elementwise) -> Elementwise:
    if not callable(function) or isinstance(function, type):
      raise ConfigError(f'activation {name!r}: must be a function of one array, not {type(function).__name__}')
    ACTIVATIONS.add(name, Activation(function, gated, rectified), inspect.unwrap(function))
    return function

  return register


@activation('relu', rectified=True)
def relu(x: jax.Array) -> jax.Array:
  """max(x, 0)."""
  return jax.nn.relu(x)


@activation('gelu')
def gelu(x: jax.Array) -> jax.Array:
  """Exact: x Phi(x), Phi the normal distribution function (Hendrycks & Gimpel 2016)."""
  return jax.nn.gelu(x, approximate=False)


@activation('silu')
def silu(x: jax.Array) -> jax.Array:
  """Swish: x sigmoid(x) (Elfwing et al. 2018)."""
  return jax.nn.silu(x)


@activation('relu2', rectified=True)
def relu2(x: jax.Array) -> jax.Array:
  """max(x, 0)^2 (So et al. 2021)."""
  return jnp.square(jax.nn.relu(x))


@activation('glu', gated=True)
def glu(x: jax.Array) -> jax.Array:
  """Gated by sigmoid(x) (Dauphin et al. 2017)."""
  return jax.nn.sigmoid(x)


@activation('swiglu', gated=True)
def swiglu(x: jax.Array) -> jax.Array:
  """Gated by x sigmoid(x) (Shazeer 2020)."""
  return jax.nn.silu(x)


@activation('geglu', gated=True)
def geglu(x: jax.Array) -> jax.Array:
  """Gated by x Phi(x) (Shazeer 2020)."""
  return gelu(x)


@activation('reglu', gated=True, rectified=True)
def reglu(x: jax.Array) -> jax.Array:
  """Gated by max(x, 0) (Shazeer 2020)."""
  return jax.nn.relu(x)


@activation('bilinear', gated=True)
def bilinear(x: jax.Array) -> jax.Array:
  """Gated by x (Mnih & Hinton 2007; Shazeer 2020)."""
  return x


GATED = tuple(name for name, part in ACTIVATIONS.items() if part.gated)  # of the built-in ones
