"""Norms within attention, on queries, keys and values, and after the feed-forward."""

import dataclasses

from model.connections.base import Connection, Ends, connection
from model.field_checks import ConfigError
from model.norm import make_norm


class HybridEnds(Ends):
  """A final norm, if the last sublayer does not end in one."""

  def __init__(self, config):
    super().__init__(config)
    shared = config.connection_options.shared
    self.norm = make_norm(config.norm, config.d_model, config.use_bias) if shared else None

  def close(self, state):
    return state if self.norm is None else self.norm(state)


@connection('hybrid_norm')
class HybridNorm(Connection):
  """u = x + attention(x) with normed q, k and v, y = N(u + feed_forward(u)) (Zhuo et al. 2025, HybridNorm).

  `shared` is the form of the authors' released configuration: n = N(u), y = n + feed_forward(n), and a final norm.
  Queries, keys and values are normed over head_dim, each with one gain for all heads.
  """

  final_norm = False
  ends = HybridEnds
  head_norms = ('query', 'key', 'value')

  @dataclasses.dataclass(frozen=True)
  class Options:
    """Whether the feed-forward and its skip path share one norm before them, in place of a norm after them."""

    shared: bool = False

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    self.shared = sublayer == 'feed_forward' and config.connection_options.shared
    if sublayer == 'feed_forward':
      self.norm = self.make_norm()

  @classmethod
  def check(cls, config):
    super().check(config)
    if config.qk_norm:
      raise ConfigError('model.connection=hybrid_norm norms queries and keys already: model.qk_norm must be false')

  def read(self, state, site):
    return self.norm(state) if self.shared else state

  def write(self, state, y_BTD, site):
    if self.sublayer == 'attention':
      return state + y_BTD
    return self.norm(state) + y_BTD if self.shared else self.norm(state + y_BTD)
