"""The activations of the feed-forward branch, by name."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

FeedForwardName = Literal['relu', 'gelu', 'silu', 'relu2', 'glu', 'swiglu', 'geglu', 'reglu', 'bilinear']


class Activation(NamedTuple):
  """An activation of the feed-forward branch.

  Attributes:
    function: elementwise, any shape and dtype; applied to up(x), or to gate(x) if gated.
    gated: whether its output multiplies up(x), as in the GLU variants of Shazeer 2020.
    rectified: whether it is 0 for every negative input, so that a unit can be dead.
  """

  function: Callable[[jax.Array], jax.Array]
  gated: bool = False
  rectified: bool = False


def _exact_gelu(x: jax.Array) -> jax.Array:
  return jax.nn.gelu(x, approximate=False)


ACTIVATIONS: dict[FeedForwardName, Activation] = {
  'relu': Activation(jax.nn.relu, rectified=True),
  'gelu': Activation(_exact_gelu),
  'silu': Activation(jax.nn.silu),
  'relu2': Activation(lambda x: jnp.square(jax.nn.relu(x)), rectified=True),  # So et al. 2021
  'glu': Activation(jax.nn.sigmoid, gated=True),
  'swiglu': Activation(jax.nn.silu, gated=True),
  'geglu': Activation(_exact_gelu, gated=True),
  'reglu': Activation(jax.nn.relu, gated=True, rectified=True),
  'bilinear': Activation(lambda x: x, gated=True),
}
GATED = tuple(name for name, activation in ACTIVATIONS.items() if activation.gated)
