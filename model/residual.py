"""The two paths through a sublayer, and the gradient that flows back along each."""

import jax
import jax.numpy as jnp

TAP_SIZE = 3  # <skip, skip>, <branch, branch>, <skip, branch>


@jax.custom_vjp
def fork(x_BTD: jax.Array, tap: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Splits the stream into skip path and residual branch, and measures the gradient that flows back along each.

  In `y = a x + F(N(x))` the gradient with respect to x is a sum: `a g` along the skip path, and J^T g along the
  residual branch. Forward, both outputs are x. Backward, x receives the sum, and the "gradient" of `tap` is

    [<g_skip, g_skip>, <g_branch, g_branch>, <g_skip, g_branch>]  in float32,

  so that `jax.grad` with respect to the taps measures every sublayer in the ordinary backward pass.

  Args:
    x_BTD: the residual stream before the sublayer, any float dtype.
    tap: zeros, float32, (3,), or (T, 3) for a measurement at each position; its values are never read.

  Returns:
    (skip_BTD, branch_BTD), each equal to x.
  """
  del tap
  return x_BTD, x_BTD


def _fork_forward(x_BTD, tap):
  return fork(x_BTD, tap), tap


def _fork_backward(tap, gradients):
  skip, branch = (g.astype(jnp.float32) for g in gradients)
  axes = (0, 2) if tap.ndim == 2 else (0, 1, 2)
  products = [jnp.sum(skip * skip, axes), jnp.sum(branch * branch, axes), jnp.sum(skip * branch, axes)]
  return gradients[0] + gradients[1], jnp.stack(products, -1)


fork.defvjp(_fork_forward, _fork_backward)
