"""Values of attention that mix in those of the first layer."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model.connections.base import Ends, connection
from model.connections.norm_placement import PreNorm
from model.field_checks import ConfigError


class StreamAndValues(NamedTuple):
  """The stream x_BTD, and the values of the first block's attention, (B, T, kv_heads, K), 0 before it; float32."""

  stream: jax.Array
  first: jax.Array


class ValueEnds(Ends):
  """Opens with the embedding and no values; the head reads the stream."""

  def open(self, x_BTD):
    heads = (self.config.kv_heads, self.config.key_width)
    return StreamAndValues(x_BTD, jnp.zeros((*x_BTD.shape[:2], *heads), jnp.float32))

  def close(self, state):
    return state.stream


@connection('value_residual')
class ValueResidual(PreNorm):
  """a x + F(N(x)) with values own v_l + first v_1 in attention from block 2 on (Zhou et al. 2024, ResFormer).

  v_1 leaves the branch of the first block's attention, and is carried on the skip path from there; where attention
  mixes it in, it enters the branch. With `learned`, each layer learns the two factors; those of the first layer have no
  effect.
  """

  supports = ('residual_scale', 'rezero')
  ends = ValueEnds

  @dataclasses.dataclass(frozen=True)
  class Options:
    """The factors of a layer's own values and of the first layer's; whether these are only the initial values."""

    own: float = 0.5
    first: float = 0.5
    learned: bool = False

    def __post_init__(self):
      for name in ('own', 'first'):
        if not math.isfinite(getattr(self, name)):
          raise ConfigError(f'model.connection=value_residual:{name}={getattr(self, name)}: must be finite')

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    options = config.connection_options
    if sublayer == 'attention' and options.learned:
      self.own, self.first = nnx.Param(jnp.float32(options.own)), nnx.Param(jnp.float32(options.first))

  def read(self, state, site):
    return super().read(state.stream, site)

  def write(self, state, y_BTD, site):
    return state._replace(stream=super().write(state.stream, y_BTD, site))

  def run(self, skip, branch, F, site):
    if self.sublayer == 'feed_forward':
      return super().run(skip, branch, F, site)
    options, is_first = self.config.connection_options, site.block == 1
    own, first = (self.own[...], self.first[...]) if options.learned else (options.own, options.first)
    projected = []

    def values(v_BSHK):
      projected.append(v_BSHK.astype(jnp.float32))
      return jnp.where(is_first, projected[0], own * projected[0] + first * branch.first).astype(v_BSHK.dtype)

    y_BTD, state = super().run(skip, branch, lambda x_BTD: F(x_BTD, values), site)
    return y_BTD, state._replace(first=jnp.where(is_first, projected[0], skip.first))
