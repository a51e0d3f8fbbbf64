"""The Transformer block: two writes into the residual stream, and where the norms sit around them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model.attention import Attention
from model.config import ModelConfig
from model.feed_forward import FeedForward
from model.norm import make_norm
from model.observation import Stats, branch_statistics, by_sublayer, merge, stream_statistics
from model.residual import fork


class Wiring(NamedTuple):
  """Where the norms of a sublayer sit.

  Attributes:
    write: what the branch adds to the stream, from the stream x as it entered the branch, the branch F, a norm N and,
      for `sandwich`, a second norm M.
    close: what becomes of the sum a x + write(x), from it and N.
  """

  write: Callable[..., jax.Array]
  close: Callable[..., jax.Array] = lambda total, N: total


WIRINGS = {
  'pre': Wiring(lambda x, F, N, M: F(N(x))),
  'post': Wiring(lambda x, F, N, M: F(x), lambda total, N: N(total)),
  'sandwich': Wiring(lambda x, F, N, M: M(F(N(x)))),
  'res_post': Wiring(lambda x, F, N, M: N(F(x))),
  'deepnorm': Wiring(lambda x, F, N, M: F(x), lambda total, N: N(total)),
  'none': Wiring(lambda x, F, N, M: F(x)),
}


def residual_scales(config: ModelConfig) -> tuple[float, float]:
  """The scale a of the attention and of the feed-forward sublayer; DeepNorm's is (2 L)^(1/4) (Wang et al. 2022)."""
  if config.norm_placement == 'deepnorm':
    return ((2 * config.num_layers) ** 0.25,) * 2
  return config.attention_residual, config.feed_forward_residual


class Block(nnx.Module):
  """u = x + attention(attention_norm(x)); y = u + feed_forward(feed_forward_norm(u)), under `pre`."""

  def __init__(self, config: ModelConfig):
    def norm():
      return make_norm(config.norm, config.d_model, config.use_bias)

    self.attention, self.feed_forward = Attention(config), FeedForward(config)
    has_norms = config.norms_per_block > 0
    self.attention_norm = norm() if has_norms else None
    self.feed_forward_norm = norm() if has_norms and not config.parallel else None
    sandwich = config.norm_placement == 'sandwich'
    self.attention_output_norm = norm() if sandwich else None
    self.feed_forward_output_norm = norm() if sandwich else None
    self.attention_scale = nnx.Param(jnp.zeros(())) if config.rezero else None
    self.feed_forward_scale = nnx.Param(jnp.zeros(())) if config.rezero else None
    self.config = config

  def __call__(
    self,
    x_BTD: jax.Array,
    taps: jax.Array,
    dropout_key: jax.Array | None = None,
    observe: bool = False,
    documents_BT: jax.Array | None = None,
  ) -> tuple[jax.Array, Stats]:
    """Runs the block.

    Args:
      x_BTD: the stream, float32.
      taps: (2, 3) or (2, T, 3): one `fork` tap a sublayer.
      dropout_key: None for no dropout.
      observe: whether to look at more than the size of the stream.
      documents_BT: the document of each position, to which its attention is confined; None: all are one.

    Returns:
      The stream after the block, and what was seen; see model/observation.py.
    """
    keys = (None, None, None) if dropout_key is None else jax.random.split(dropout_key, 3)
    seen: list[Stats] = []

    def attention(x):
      if observe:
        seen.append(self.attention.observe(x, documents_BT))
      return self._branch_output(self.attention(x, keys[0], documents_BT), self.attention_scale, keys[1])

    def feed_forward(x):
      if observe:
        seen.append(self.feed_forward.observe(x))
      return self._branch_output(self.feed_forward(x), self.feed_forward_scale, keys[2])

    if self.config.parallel:
      sublayers = self._parallel(x_BTD, taps, attention, feed_forward)
    else:
      sublayers = self._in_sequence(x_BTD, taps, attention, feed_forward)
    after = by_sublayer(*(stream_statistics(y_BTD) for _, _, y_BTD in sublayers))
    if observe:
      seen.append(by_sublayer(*(branch_statistics(*sublayer) for sublayer in sublayers)))
    return sublayers[-1][-1], merge(after, *seen)

  def _in_sequence(self, x_BTD, taps, attention, feed_forward):
    """(stream before, what the branch added, stream after) of each sublayer."""
    wiring = WIRINGS[self.config.norm_placement]
    sublayers = []
    for tap, F, a, N, M in zip(
      taps,
      (attention, feed_forward),
      residual_scales(self.config),
      (self.attention_norm, self.feed_forward_norm),
      (self.attention_output_norm, self.feed_forward_output_norm),
      strict=True,
    ):
      skip_BTD, branch_BTD = fork(x_BTD, tap)
      written_BTD = wiring.write(branch_BTD, F, N, M)
      y_BTD = wiring.close(a * skip_BTD + written_BTD, N)
      sublayers.append((x_BTD, written_BTD, y_BTD))
      x_BTD = y_BTD
    return sublayers

  def _parallel(self, x_BTD, taps, attention, feed_forward):
    """Both branches read N(x), as in GPT-J (Wang 2021); the two forks are chained on the skip path."""
    skip_BTD, to_attention_BTD = fork(x_BTD, taps[0])
    skip_BTD, to_feed_forward_BTD = fork(skip_BTD, taps[1])
    a, norm = self.config.attention_residual, self.attention_norm
    assert norm is not None  # `parallel` goes with `pre` alone
    from_attention_BTD = attention(norm(to_attention_BTD))
    from_feed_forward_BTD = feed_forward(norm(to_feed_forward_BTD))
    u_BTD = a * skip_BTD + from_attention_BTD
    return [(x_BTD, from_attention_BTD, u_BTD), (x_BTD, from_feed_forward_BTD, u_BTD + from_feed_forward_BTD)]

  def _branch_output(self, y_BTD, scale, dropout_key):
    """What a branch gives to the stream: float32, thinned by dropout, and under ReZero scaled."""
    y_BTD = y_BTD.astype(jnp.float32)
    if dropout_key is not None:
      kept = jax.random.bernoulli(dropout_key, 1 - self.config.dropout, y_BTD.shape)
      y_BTD = jnp.where(kept, y_BTD / (1 - self.config.dropout), 0)
    return y_BTD if scale is None else scale[...] * y_BTD
