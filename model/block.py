"""The Transformer block: attention and feed-forward, each added to the residual stream."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model.attention import Attention
from model.config import ModelConfig
from model.feed_forward import FeedForward
from model.forward_statistics import Stats, branch_statistics, by_sublayer, merge, stream_statistics
from model.norm import make_norm
from model.norm_placement import NORM_PLACEMENTS
from model.residual import fork

Branch = Callable[[jax.Array], jax.Array]


class Sublayer(NamedTuple):
  """The stream before a sublayer, the output of its branch, and the stream after it; each (B, T, D), float32."""

  input: jax.Array
  branch: jax.Array
  output: jax.Array


def residual_scales(config: ModelConfig) -> tuple[float, float]:
  """The residual scales of the attention and feed-forward sublayers; (2 L)^(1/4) for DeepNorm (Wang et al. 2022)."""
  if config.norm_placement == 'deepnorm':
    return ((2 * config.num_layers) ** 0.25,) * 2
  return config.attention_residual, config.feed_forward_residual


class Block(nnx.Module):
  """u = a x + attention(N(x)); y = b u + feed_forward(N(u)) with pre-norm; model/norm_placement.py has the others."""

  def __init__(self, config: ModelConfig):
    def norm_if(exists: bool):
      return make_norm(config.norm, config.d_model, config.use_bias) if exists else None

    def rezero_scale():
      return nnx.Param(jnp.zeros(())) if config.rezero else None

    norms = NORM_PLACEMENTS[config.norm_placement].norms
    self.attention, self.feed_forward = Attention(config), FeedForward(config)
    self.attention_norm, self.feed_forward_norm = norm_if(norms > 0), norm_if(norms > 0 and not config.parallel)
    self.attention_output_norm, self.feed_forward_output_norm = norm_if(norms > 1), norm_if(norms > 1)
    self.attention_scale, self.feed_forward_scale = rezero_scale(), rezero_scale()
    self.config = config

  def __call__(
    self,
    x_BTD: jax.Array,
    taps: jax.Array,
    dropout_key: jax.Array | None = None,
    full_stats: bool = False,
    documents_BT: jax.Array | None = None,
  ) -> tuple[jax.Array, Stats]:
    """Runs the block.

    Args:
      x_BTD: the residual stream, float32.
      taps: zeros, float32, (2, 3) or (2, T, 3): a `fork` tap for each sublayer.
      dropout_key: None for no dropout.
      full_stats: whether to compute all forward statistics; otherwise only the mean square of the stream.
      documents_BT: the document index of each position, int32: positions attend only within their document; None: a
        single document.

    Returns:
      The stream after the block, y_BTD in float32, and its forward statistics; see model/forward_statistics.py.
    """
    keys = (None, None, None) if dropout_key is None else jax.random.split(dropout_key, 3)
    stats: list[Stats] = []

    def attention(x_BTD):
      if full_stats:
        stats.append(self.attention.statistics(x_BTD, documents_BT))
      return self._branch_output(self.attention(x_BTD, keys[0], documents_BT), self.attention_scale, keys[1])

    def feed_forward(x_BTD):
      if full_stats:
        stats.append(self.feed_forward.statistics(x_BTD))
      return self._branch_output(self.feed_forward(x_BTD), self.feed_forward_scale, keys[2])

    run = self._parallel if self.config.parallel else self._sequential
    sublayers = run(x_BTD, taps, attention, feed_forward)
    stream = by_sublayer(*(stream_statistics(sublayer.output) for sublayer in sublayers))
    if full_stats:
      stats.append(by_sublayer(*(branch_statistics(*sublayer) for sublayer in sublayers)))
    return sublayers[1].output, merge(stream, *stats)

  def _sequential(self, x_BTD, taps, attention: Branch, feed_forward: Branch) -> tuple[Sublayer, Sublayer]:
    """Each sublayer is y = output(a x + branch(x)); the feed-forward reads the output of attention."""
    placement = NORM_PLACEMENTS[self.config.norm_placement]

    def sublayer(x_BTD, tap, F, a, N, M):
      skip_BTD, into_branch_BTD = fork(x_BTD, tap)
      branch_BTD = placement.branch(into_branch_BTD, F, N, M)
      y_BTD = placement.output(a * skip_BTD + branch_BTD, N)
      return Sublayer(x_BTD, branch_BTD, y_BTD)

    a, b = residual_scales(self.config)
    first = sublayer(x_BTD, taps[0], attention, a, self.attention_norm, self.attention_output_norm)
    second = sublayer(first.output, taps[1], feed_forward, b, self.feed_forward_norm, self.feed_forward_output_norm)
    return first, second

  def _parallel(self, x_BTD, taps, attention: Branch, feed_forward: Branch) -> tuple[Sublayer, Sublayer]:
    """Both branches read N(x), as in GPT-J (Wang & Komatsuzaki 2021); the two forks are chained on the skip path."""
    a, norm = self.config.attention_residual, self.attention_norm
    assert norm is not None  # `parallel` requires `pre`
    skip_BTD, into_attention_BTD = fork(x_BTD, taps[0])
    skip_BTD, into_feed_forward_BTD = fork(skip_BTD, taps[1])
    attention_BTD = attention(norm(into_attention_BTD))
    feed_forward_BTD = feed_forward(norm(into_feed_forward_BTD))
    u_BTD = a * skip_BTD + attention_BTD
    y_BTD = u_BTD + feed_forward_BTD
    return Sublayer(x_BTD, attention_BTD, u_BTD), Sublayer(x_BTD, feed_forward_BTD, y_BTD)

  def _branch_output(self, y_BTD, scale, dropout_key):
    """The term that a branch adds to the stream: its output in float32, with dropout applied and the ReZero scale."""
    y_BTD = y_BTD.astype(jnp.float32)
    if dropout_key is not None:
      keep_BTD = jax.random.bernoulli(dropout_key, 1 - self.config.dropout, y_BTD.shape)
      y_BTD = jnp.where(keep_BTD, y_BTD / (1 - self.config.dropout), 0)
    return y_BTD if scale is None else scale[...] * y_BTD
