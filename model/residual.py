"""The two paths through a sublayer, and the gradient that came down each of them."""

import jax
import jax.numpy as jnp

TAP_SIZE = 3  # <skip, skip>, <branch, branch>, <skip, branch>


@jax.custom_vjp
def fork(x_BTD: jax.Array, tap: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Splits the stream in two, and measures the gradient that comes back along each path.

  In `y = a x + F(N(x))` the gradient that reaches x is a sum: `a g` came down the skip path, and J^T g came down
  the residual branch. Forward, both outputs are x. Backward, x receives the sum, and the "gradient" of `tap` is

    [<g_skip, g_skip>, <g_branch, g_branch>, <g_skip, g_branch>]  in float32,

  so that `jax.grad` with respect to the taps measures every sublayer in the backward pass that runs anyway.

  Args:
    x_BTD: the residual stream at the sublayer's input.
    tap: zeros of shape (3,), or (T, 3) to keep positions apart; its values are never read.

  Returns:
    (x_skip, x_branch), each equal to x.
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
