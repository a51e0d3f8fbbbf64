"""Norm placements that depend on the index of the block."""

import dataclasses

import jax.numpy as jnp

from model.connections.base import connection
from model.connections.norm_placement import OneStream
from model.field_checks import ConfigError


@connection('mix_ln')
class MixLN(OneStream):
  """N(a x + F(x)) in the first k blocks, a x + F(N(x)) in the others (Li et al. 2024, Mix-LN).

  k = 0 is `pre`, and k = L is `post`, without a final norm. Otherwise both norms of each sublayer are computed, and one
  is chosen, so that one program runs every block.
  """

  @dataclasses.dataclass(frozen=True)
  class Options:
    """Options of Mix-LN.

    Attributes:
      k: the number of blocks with `post`; -1: a quarter of all, rounded down, as in the paper.
    """

    k: int = -1

    def __post_init__(self):
      if self.k < -1:
        raise ConfigError(f'model.connection=mix_ln:k={self.k}: must be at least 0, or -1 for a quarter of the blocks')

  @classmethod
  def check(cls, config):
    super().check(config)
    if config.connection_options.k > config.num_layers:
      raise ConfigError(f'model.connection={config.connection}: k must be at most model.num_layers={config.num_layers}')

  @classmethod
  def has_final_norm(cls, config):
    return cls._post_blocks(config) < config.num_layers

  @staticmethod
  def _post_blocks(config) -> int:
    k = config.connection_options.k
    return config.num_layers // 4 if k < 0 else k

  def _choose(self, site, post, pre):
    """The result of `post` in the first k blocks, otherwise that of `pre`; both are functions."""
    k = self._post_blocks(self.config)
    if k in (0, self.config.num_layers):
      return post() if k else pre()
    return jnp.where(site.block <= k, post(), pre())

  def read(self, state, site):
    return self._choose(site, lambda: state, lambda: self.norm(state))

  def write(self, state, y_BTD, site):
    sum_BTD = super().write(state, y_BTD, site)
    return self._choose(site, lambda: self.norm(sum_BTD), lambda: sum_BTD)


@connection('keel')
class Keel(OneStream):
  """N(alpha x + F(M(x))), alpha = 2 L the number of sublayers, M and N norms (Keel, 2026, arXiv 2601.19895).

  In the first block attention is x + F(M(x)), and the feed-forward N(x + F(M(x))). That attention's gain of N exists,
  because all blocks have the same parameters, but it is not used and gets no gradient.
  """

  supports = ()
  norms = ('norm', 'output_norm')
  final_norm = False

  def read(self, state, site):
    return self.norm(state)

  def write(self, state, y_BTD, site):
    sum_BTD = jnp.where(site.block == 1, 1.0, float(site.total)) * state + y_BTD
    return jnp.where(site.index == 1, sum_BTD, self.output_norm(sum_BTD))
