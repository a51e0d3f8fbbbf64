"""The two paths through a sublayer, and the gradient that flows back along each."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

TAP_SIZE = 3  # <skip, skip>, <branch, branch>, <skip, branch>


@jax.custom_vjp
def fork(state: Any, tap: jax.Array) -> tuple[Any, Any]:
  """Splits the residual state into skip path and residual branch, and measures the gradient that flows back along each.

  In `y = a x + F(N(x))` the gradient with respect to x is a sum: `a g` along the skip path, and J^T g along the
  residual branch. Forward, both outputs are x. Backward, x receives the sum, and the "gradient" of `tap` is

    [<g_skip, g_skip>, <g_branch, g_branch>, <g_skip, g_branch>]  in float32,

  so that `jax.grad` with respect to the taps measures every sublayer in the ordinary backward pass. A state of several
  arrays, such as n streams, is measured as one vector: each product is the sum over all arrays.

  Args:
    state: the residual state before the sublayer: a pytree of float arrays (B, T, ...); for most connections the
      stream x_BTD alone.
    tap: zeros, float32, (3,), or (T, 3) for a measurement at each position; its values are never read.

  Returns:
    (skip, branch), each equal to the state.
  """
  del tap
  return state, state


def _fork_forward(state, tap):
  return (state, state), tap  # the same array twice: stored once for the backward pass


def _fork_backward(tap, gradients):
  products = [_products(tap, *leaves) for leaves in zip(*map(jax.tree.leaves, gradients), strict=True)]
  return jax.tree.map(jnp.add, *gradients), functools.reduce(jnp.add, products)


def _products(tap, skip, branch):
  """The three products of one array of the state, summed over all axes; by position, over all but the second."""
  skip, branch = skip.astype(jnp.float32), branch.astype(jnp.float32)
  axes = tuple(axis for axis in range(skip.ndim) if tap.ndim == 1 or axis != 1)
  return jnp.stack([jnp.sum(skip * skip, axes), jnp.sum(branch * branch, axes), jnp.sum(skip * branch, axes)], -1)


fork.defvjp(_fork_forward, _fork_backward)
