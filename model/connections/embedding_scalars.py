"""The embedding is added again before each block, by learned scalars."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model.connections.base import Connection, Ends, OptimizerFactors, Site, connection
from model.field_checks import ConfigError

STREAM_RATE = 0.01  # the learning rate of lambda as a share of that of mu


class StreamAndEmbedding(NamedTuple):
  """The stream, and the embedding (after `embedding_norm`, if there is one): (B, T, D), float32."""

  stream: jax.Array
  embedding: jax.Array


class BothEnds(Ends):
  """Opens with the embedding as the stream, and as itself; the head reads the stream."""

  def open(self, x_BTD):
    return StreamAndEmbedding(x_BTD, x_BTD)

  def close(self, state):
    return state.stream


@connection('embedding_scalars')
class EmbeddingScalars(Connection):
  """x <- lambda x + mu x0 before each block, x0 the embedding; then as pre (Karpathy 2026, nanochat).

  lambda starts at 1 and mu at 0, so that it starts as pre. The learning rate of lambda is a hundredth of that of mu,
  since products of lambda accumulate with depth.
  """

  ends = BothEnds

  @dataclasses.dataclass(frozen=True)
  class Options:
    """The options.

    Attributes:
      rate: the learning rate of mu, as a multiple of optimizer.learning_rate.
    """

    rate: float = 1.0

    def __post_init__(self):
      if not 0 < self.rate < math.inf:
        raise ConfigError(f'model.connection=embedding_scalars:rate={self.rate}: must be above 0')

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    self.norm = self.make_norm()
    if sublayer == 'attention':
      self.stream_scalar, self.embedding_scalar = nnx.Param(jnp.ones(())), nnx.Param(jnp.zeros(()))

  def _mixed(self, state: StreamAndEmbedding) -> jax.Array:
    if self.sublayer != 'attention':
      return state.stream
    return self.stream_scalar[...] * state.stream + self.embedding_scalar[...] * state.embedding

  def read(self, state: StreamAndEmbedding, site: Site) -> jax.Array:
    return self.norm(self._mixed(state))

  def write(self, state: StreamAndEmbedding, y_BTD: jax.Array, site: Site) -> StreamAndEmbedding:
    return StreamAndEmbedding(self._mixed(state) + y_BTD, state.embedding)

  @classmethod
  def optimizer_factors(cls, config, path):
    rate = config.connection_options.rate
    rates = {'blocks/attention_stream_scalar': STREAM_RATE * rate, 'blocks/attention_embedding_scalar': rate}
    return OptimizerFactors(learning_rate=rates.get(path, 1.0))
