"""The gradient split without `fork`: each path of each sublayer has a perturbation of its own, differentiated as such.

The blocks run as a Python loop, so that the state may have another structure at every sublayer.
"""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from model import transformer


class Unrolled:
  """The module jax, with a Python loop for jax.lax.scan."""

  class lax:  # noqa: N801 - stands for a module
    stop_gradient = staticmethod(jax.lax.stop_gradient)

    @staticmethod
    def scan(step, carry, xs, unroll=1):
      outputs = []
      for k in range(len(jax.tree.leaves(xs)[0])):
        carry, output = step(carry, jax.tree.map(lambda x, k=k: x[k], xs))
        outputs.append(output)
      return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *outputs)

  def __getattr__(self, name: str) -> Any:
    return getattr(jax, name)


def _apply(fork, config, params, tokens_BT, **kwargs):
  with (
    mock.patch.object(transformer, 'jax', Unrolled()),
    mock.patch('model.block.fork', fork),
    mock.patch('model.transformer.fork', fork),
  ):
    return transformer.apply(config, params, tokens_BT, **kwargs)[0]


def split_products(config, params, tokens_BT, weights_BTV, **kwargs):
  """The products that the taps measure, by position, (2 L + 1, T, 3): those of the sublayers, then of the output.

  Args:
    config: the model config.
    params: its parameters.
    tokens_BT: token ids.
    weights_BTV: the loss is the sum of the logits times these.
    **kwargs: other arguments of `apply`.
  """
  shapes = []

  def record(state, tap):
    shapes.append(jax.eval_shape(lambda: (state, state)))
    return state, state

  jax.eval_shape(lambda: _apply(record, config, params, tokens_BT, **kwargs))

  def loss(nudges):
    rest = iter(nudges)

    def nudged(state, tap):
      skip, branch = next(rest)
      return jax.tree.map(jnp.add, state, skip), jax.tree.map(jnp.add, state, branch)

    return jnp.sum(weights_BTV * _apply(nudged, config, params, tokens_BT, **kwargs))

  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
  return jnp.stack([_products(*pair) for pair in jax.grad(loss)(zeros)])


def _products(skip, branch):
  """<skip, skip>, <branch, branch>, <skip, branch> at each position, (T, 3), over all arrays of the state."""

  def inner(a, b):
    return sum(jnp.einsum('bt...,bt...->t', x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))

  return jnp.stack([inner(skip, skip), inner(branch, branch), inner(skip, branch)], -1)
