"""Pre-norm with a factor on the branch: learned for each channel, random, or a function of depth."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from model.connections.base import connection
from model.connections.norm_placement import PreNorm
from model.field_checks import ConfigError


@connection('layer_scale')
class LayerScale(PreNorm):
  """a x + s * F(N(x)), s a learned vector of width d_model (Touvron et al. 2021, LayerScale).

  s starts at 0.1 up to 18 blocks, at 1e-5 up to 24, and at 1e-6 in deeper stacks. With s = 1 it is `pre`.
  """

  supports = ('residual_scale', 'parallel')

  @dataclasses.dataclass(frozen=True)
  class Options:
    """Options of LayerScale.

    Attributes:
      initial: the initial value of s; 0: by depth.
    """

    initial: float = 0.0

    def __post_init__(self):
      if self.initial < 0:
        raise ConfigError(
          f'model.connection=layer_scale:initial={self.initial}: must be positive, or 0 for the value by depth'
        )

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    by_depth = 0.1 if config.num_layers <= 18 else 1e-5 if config.num_layers <= 24 else 1e-6
    self.channel_scale = nnx.Param(jnp.full(config.d_model, config.connection_options.initial or by_depth))

  def term(self, y_BTD, site):
    return self.channel_scale[...] * y_BTD


@connection('stochastic_depth')
class StochasticDepth(PreNorm):
  """a x + (b / p) * F(N(x)) in training, b ~ Bernoulli(p); b / p is 1 in evaluation (Huang et al. 2016).

  In sublayer l of 2 L, p = 1 - l / (2 L) (1 - p_last). Each sequence draws its own b for each sublayer, as in Touvron
  et al. 2021; Huang et al. draw one for the whole batch. They also multiply by p in evaluation instead of dividing by
  it in training. Dropped branches are computed and multiplied by 0, so the FLOPs are those of `pre`.
  """

  @dataclasses.dataclass(frozen=True)
  class Options:
    """Options of stochastic depth.

    Attributes:
      p_last: the probability p_L that the last branch is kept; 1: `pre`.
    """

    p_last: float = 0.5

    def __post_init__(self):
      if not 0 < self.p_last <= 1:
        raise ConfigError(f'model.connection=stochastic_depth:p_last={self.p_last}: must be above 0 and at most 1')

  @classmethod
  def stochastic(cls, config):
    return config.connection_options.p_last < 1

  def term(self, y_BTD, site):
    y_BTD, p_last = super().term(y_BTD, site), self.config.connection_options.p_last
    if site.key is None:
      return y_BTD
    p = p_last + (1 - site.index / site.total) * (1 - p_last)
    keep_B11 = jax.random.bernoulli(site.key, p, (len(y_BTD), 1, 1))
    return jnp.where(keep_B11, y_BTD / p, 0)


@connection('layer_norm_scaling')
class LayerNormScaling(PreNorm):
  """a x + F(N(x) / sqrt(l)), l the index of the block (Sun et al. 2025, LayerNorm scaling).

  Sun et al. do not scale the initial kernels by depth, which would hide the effect: set model.init_depth_scale=false.
  """

  def read(self, state, site):
    return super().read(state, site) / site.block**0.5
