"""Forward statistics of a block: a few float32 numbers, excluded from differentiation.

Each is a mean or a maximum over the batch, under `mean` or `max`, so that the statistics of a batch can be computed
from those of its equal parts. Most means are of squares and products, from which training/measures.py computes root
mean squares, ratios and cosines.

  mean  stream_square       {sublayer}  mean of y^2, where y is the stream after the sublayer
  and, with `full_stats`,
        input_square        {sublayer}  mean of x^2, where x is the stream before the sublayer
        branch_square       {sublayer}  mean of F^2, where F is the branch output
        branch_inner        {sublayer}  mean of F x
        relative_residual   {sublayer}  r(y); see `relative_residual`
        attention_entropy   (H,)        of the attention weights, that of the sink included, in nats, over queries
        reading, mixing, writing        {sublayer}  weights of a design with several arrays (model/connections/base.py)
  max   largest_logit       (H,)        of the attention logits, over queries, the keys they attend to, and the sink
        active_units        (F,)        1 for a unit that is above 0 at some position, 0 for a dead unit; only for
                                        rectified activations
"""

import jax
import jax.numpy as jnp

from model.kernels.blocked_attention import BLOCK_SIZE
from model.kernels.plain_attention import attention_logits, with_sink

Stats = dict[str, dict]


def stream_statistics(y_BTD: jax.Array) -> Stats:
  """Statistics of the stream after a sublayer, y_BTD; always computed."""
  return {'mean': {'stream_square': _mean_product(y_BTD, y_BTD)}, 'max': {}}


def branch_statistics(x_BTD: jax.Array, branch_BTD: jax.Array, y_BTD: jax.Array) -> Stats:
  """Statistics of a sublayer with input x_BTD, branch output `branch_BTD` and output y_BTD."""
  means = {
    'input_square': _mean_product(x_BTD, x_BTD),
    'branch_square': _mean_product(branch_BTD, branch_BTD),
    'branch_inner': _mean_product(x_BTD, branch_BTD),
    'relative_residual': jnp.mean(jax.vmap(relative_residual)(jax.lax.stop_gradient(y_BTD))),
  }
  return {'mean': means, 'max': {}}


def relative_residual(x_TD: jax.Array) -> jax.Array:
  """How far a sequence is from rank collapse: r = |X - 1 m^T| / |X| (Dong et al. 2021, section 2).

  m is the mean over positions, |A| = sqrt(|A|_1 |A|_inf). In attention without skip connections r falls towards 0 with
  depth; at 0 all positions hold the same vector.

  Args:
    x_TD: the stream of one sequence.

  Returns:
    A scalar; 0 for a stream of zeros.
  """

  def norm(a_TD):
    sizes_TD = jnp.abs(a_TD)
    return jnp.sqrt(jnp.max(jnp.sum(sizes_TD, 0)) * jnp.max(jnp.sum(sizes_TD, 1)))

  size = norm(x_TD)
  return norm(x_TD - jnp.mean(x_TD, 0)) / jnp.where(size > 0, size, 1)


def attention_statistics(
  q_BTHK: jax.Array,
  k_BSHK: jax.Array,
  causal: bool,
  documents_BT: jax.Array | None = None,
  sink_H: jax.Array | None = None,
) -> Stats:
  """Statistics of the attention weights, from the plain definition, because fused kernels do not return the weights.

  Computed one block of queries at a time, so that memory grows with T rather than with T^2.

  Args:
    q_BTHK: queries, float32 or bfloat16.
    k_BSHK: keys, the same dtype; its heads may be fewer.
    causal: whether a query attends to no later position than its own.
    documents_BT: as for `dot_product_attention`.
    sink_H: as for `dot_product_attention`; it counts as one more key that every query attends to.

  Returns:
    The entropy, averaged over queries and sequences, and the largest logit, each (H,).
  """
  q_BTHK, k_BSHK = jax.lax.stop_gradient((q_BTHK, k_BSHK))
  batch, length, heads, _ = q_BTHK.shape
  entropy_H, largest_H = jnp.zeros(heads), jnp.full(heads, -jnp.inf)
  for start in range(0, length, BLOCK_SIZE):
    stop = min(start + BLOCK_SIZE, length)
    num_keys = stop if causal else length
    logits_BHTS = attention_logits(q_BTHK[:, start:stop], k_BSHK[:, :num_keys], causal, documents_BT, start)
    if sink_H is not None:
      logits_BHTS = with_sink(logits_BHTS, jax.lax.stop_gradient(sink_H))
    weights_BHTS = jax.nn.softmax(logits_BHTS, -1)
    entropy_H += jnp.sum(jax.scipy.special.entr(weights_BHTS), (0, 2, 3))
    largest_H = jnp.maximum(largest_H, jnp.max(logits_BHTS, (0, 2, 3)))
  return {'mean': {'attention_entropy': entropy_H / (batch * length)}, 'max': {'largest_logit': largest_H}}


def merge(*parts: Stats) -> Stats:
  """The union of statistics with different names."""
  return {kind: {name: value for part in parts for name, value in part[kind].items()} for kind in ('mean', 'max')}


def by_sublayer(attention: Stats, feed_forward: Stats) -> Stats:
  """The same statistics of both sublayers, each keyed by the sublayer's name."""
  return jax.tree.map(lambda a, f: {'attention': a, 'feed_forward': f}, attention, feed_forward)


def _mean_product(a: jax.Array, b: jax.Array) -> jax.Array:
  return jnp.mean(jax.lax.stop_gradient(a * b).astype(jnp.float32))
