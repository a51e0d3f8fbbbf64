"""The Transformer block: two writes into the residual stream, and where the norms sit around them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from model.attention import Attention
from model.config import ModelConfig
from model.feed_forward import FeedForward
from model.norm import make_norm
from model.residual import fork

# A wiring makes a sublayer's output from x as it came down the skip path, x as it entered the branch (the same
# numbers: see `fork`), the branch F, the residual scale a, a norm N and, for `sandwich`, a second norm M.
WIRINGS: dict[str, Callable] = {
  'pre': lambda skip, x, F, a, N, M: a * skip + F(N(x)),
  'post': lambda skip, x, F, a, N, M: N(a * skip + F(x)),
  'sandwich': lambda skip, x, F, a, N, M: a * skip + M(F(N(x))),
  'res_post': lambda skip, x, F, a, N, M: a * skip + N(F(x)),
  'deepnorm': lambda skip, x, F, a, N, M: N(a * skip + F(x)),
  'none': lambda skip, x, F, a, N, M: a * skip + F(x),
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
    self, x_BTD: jax.Array, taps: jax.Array, dropout_key: jax.Array | None = None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Runs the block.

    Args:
      x_BTD: the stream, float32.
      taps: (2, 3) or (2, T, 3): one `fork` tap a sublayer.
      dropout_key: None for no dropout.

    Returns:
      The stream after the block, and what was seen: the stream's root mean square after each sublayer.
    """
    keys = (None, None, None) if dropout_key is None else jax.random.split(dropout_key, 3)

    def attention(x):
      return self._branch_output(self.attention(x, keys[0]), self.attention_scale, keys[1])

    def feed_forward(x):
      return self._branch_output(self.feed_forward(x), self.feed_forward_scale, keys[2])

    if self.config.parallel:
      return self._parallel(x_BTD, taps, attention, feed_forward)
    write = WIRINGS[self.config.norm_placement]
    a_attention, a_feed_forward = residual_scales(self.config)
    u_BTD = write(*fork(x_BTD, taps[0]), attention, a_attention, self.attention_norm, self.attention_output_norm)
    y_BTD = write(
      *fork(u_BTD, taps[1]), feed_forward, a_feed_forward, self.feed_forward_norm, self.feed_forward_output_norm
    )
    return y_BTD, {'attention': root_mean_square(u_BTD), 'feed_forward': root_mean_square(y_BTD)}

  def _parallel(self, x_BTD, taps, attention, feed_forward):
    """Both branches read N(x), as in GPT-J (Wang 2021); the two forks are chained on the skip path."""
    skip_BTD, to_attention_BTD = fork(x_BTD, taps[0])
    skip_BTD, to_feed_forward_BTD = fork(skip_BTD, taps[1])
    a, norm = self.config.attention_residual, self.attention_norm
    assert norm is not None  # `parallel` goes with `pre` alone
    u_BTD = a * skip_BTD + attention(norm(to_attention_BTD))
    y_BTD = u_BTD + feed_forward(norm(to_feed_forward_BTD))
    return y_BTD, {'attention': root_mean_square(u_BTD), 'feed_forward': root_mean_square(y_BTD)}

  def _branch_output(self, y_BTD, scale, dropout_key):
    """What a branch gives to the stream: float32, thinned by dropout, and under ReZero scaled."""
    y_BTD = y_BTD.astype(jnp.float32)
    if dropout_key is not None:
      kept = jax.random.bernoulli(dropout_key, 1 - self.config.dropout, y_BTD.shape)
      y_BTD = jnp.where(kept, y_BTD / (1 - self.config.dropout), 0)
    return y_BTD if scale is None else scale[...] * y_BTD


def root_mean_square(x: jax.Array) -> jax.Array:
  """sqrt(mean(x^2)) over all of x, a float32 scalar outside the gradient."""
  return jnp.sqrt(jnp.mean(jnp.square(jax.lax.stop_gradient(x).astype(jnp.float32))))
