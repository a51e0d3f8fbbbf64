"""What a block saw in its forward pass: a few float32 numbers, outside the gradient.

Every number is a mean or a maximum over the batch, and stands under `mean` or `max`: so the numbers of a whole batch
follow from those of its equal parts. What a person reads (root mean squares, ratios, cosines) follows from these
moments; see training/metrics.py.

  mean  stream_square       {sublayer}  mean of y^2, y the stream after the sublayer
  and, when observed,
        input_square        {sublayer}  mean of x^2, x the stream that the branch is added to
        branch_square       {sublayer}  mean of F^2, F what the branch adds
        branch_inner        {sublayer}  mean of F x
        relative_residual   {sublayer}  r(y); see `relative_residual`
        attention_entropy   (H,)        of the weights, in nats, over queries
  max   largest_logit       (H,)        over queries and the keys they see
        active_units        (F,)        1 for a unit that was above 0 anywhere; ReLU family alone
"""

import jax
import jax.numpy as jnp

Stats = dict[str, dict]


def stream_statistics(y_BTD: jax.Array) -> Stats:
  """Of the stream after a sublayer, in every pass."""
  return {'mean': {'stream_square': _mean_product(y_BTD, y_BTD)}, 'max': {}}


def branch_statistics(x_BTD: jax.Array, written_BTD: jax.Array, y_BTD: jax.Array) -> Stats:
  """Of a sublayer that had x, to which its branch added `written`, and that gave y."""
  means = {
    'input_square': _mean_product(x_BTD, x_BTD),
    'branch_square': _mean_product(written_BTD, written_BTD),
    'branch_inner': _mean_product(x_BTD, written_BTD),
    'relative_residual': jnp.mean(jax.vmap(relative_residual)(jax.lax.stop_gradient(y_BTD))),
  }
  return {'mean': means, 'max': {}}


def relative_residual(x_TD: jax.Array) -> jax.Array:
  """How far the positions of a sequence are from all being the same: |X - 1 m^T| / |X| (Dong et al. 2021, section 2).

  m is the mean over positions, |A| = sqrt(|A|_1 |A|_inf). Attention without skips lets it fall to 0, where every
  position holds the same vector; 0 for a stream of zeros.
  """

  def norm(a_TD):
    sizes_TD = jnp.abs(a_TD)
    return jnp.sqrt(jnp.max(jnp.sum(sizes_TD, 0)) * jnp.max(jnp.sum(sizes_TD, 1)))

  size = norm(x_TD)
  return norm(x_TD - jnp.mean(x_TD, 0)) / jnp.where(size > 0, size, 1)


def merge(*parts: Stats) -> Stats:
  """One dict of all that several parts saw."""
  return {kind: {name: value for part in parts for name, value in part[kind].items()} for kind in ('mean', 'max')}


def by_sublayer(attention: Stats, feed_forward: Stats) -> Stats:
  """The same numbers of both sublayers, under the sublayers' names."""
  return jax.tree.map(lambda a, f: {'attention': a, 'feed_forward': f}, attention, feed_forward)


def _mean_product(a: jax.Array, b: jax.Array) -> jax.Array:
  return jnp.mean(jax.lax.stop_gradient(a * b).astype(jnp.float32))
