"""The outputs of earlier blocks enter the stream again between blocks, by learned weights."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model.connections.base import Connection, Ends, Site, connection
from model.field_checks import ConfigError


class BlockOutputs(NamedTuple):
  """The stream, and the outputs of earlier blocks that are used again: (B, T, D), float32."""

  stream: jax.Array
  earlier: tuple[jax.Array, ...]


class _ReadsEarlierOutputs(Connection):
  """Each sublayer is that of pre, on the stream; what is between the blocks is in `ends`."""

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    self.norm = self.make_norm()

  def read(self, state: BlockOutputs, site: Site) -> jax.Array:
    return self.norm(state.stream)

  def write(self, state: BlockOutputs, y_BTD: jax.Array, site: Site) -> BlockOutputs:
    return state._replace(stream=state.stream + y_BTD)


class DepthWeightedAverages(Ends):
  """Replaces the stream by a weighted sum of the embedding and the outputs of blocks, after every group of blocks."""

  def __init__(self, config):
    super().__init__(config)
    count = DenseFormer.averages(config)
    one_hot = [np.eye(sources)[-1] for sources in range(2, count + 2)]
    self.weights = nnx.Param(jnp.asarray(np.concatenate(one_hot), jnp.float32))

  def open(self, x_BTD):
    return BlockOutputs(x_BTD, (x_BTD,))

  def between(self, state, blocks):
    number = blocks // self.config.connection_options.every  # of this average, from 1: it has number + 1 sources
    start = (number - 1) * (number + 2) // 2
    sources = (*state.earlier, state.stream)
    weights = self.weights[...][start : start + number + 1]
    return BlockOutputs(sum(w * v for w, v in zip(weights, sources, strict=True)), sources)

  def close(self, state):
    layers = self.config.num_layers
    return (state if layers % self.config.connection_options.every else self.between(state, layers)).stream


@connection('dense_former')
class DenseFormer(_ReadsEarlierOutputs):
  """After block i, x <- sum_{j <= i} w_ij x_j, x_j the output of block j, x_0 the embedding (Pagliardini et al. 2024).

  w starts one-hot on the current output: it starts as pre. The x_j are the outputs before these sums. Weights between 0
  and 1, or a sum of 1, are not enforced, as in the paper. Every group of blocks between two sums is compiled by
  itself, and the time grows with the square of their number: take every = L / 8 or so in a deep stack.
  """

  ends = DepthWeightedAverages

  @dataclasses.dataclass(frozen=True)
  class Options:
    """The options.

    Attributes:
      every: the sum is taken after every so many blocks, of the outputs of these blocks alone (in the paper: the
        dilation and the period, set to one value).
    """

    every: int = 1

    def __post_init__(self):
      if self.every < 1:
        raise ConfigError(f'model.connection=dense_former:every={self.every}: must be at least 1')

  @classmethod
  def check(cls, config):
    super().check(config)
    if config.connection_options.every > config.num_layers:
      raise ConfigError(
        f'model.connection={config.connection}: every must be at most model.num_layers={config.num_layers}'
      )

  @classmethod
  def averages(cls, config) -> int:
    """The number of sums."""
    return config.num_layers // config.connection_options.every

  @classmethod
  def groups(cls, config):
    every = config.connection_options.every
    rest = config.num_layers % every
    return (every,) * cls.averages(config) + ((rest,) if rest else ())

  @classmethod
  def extra_products(cls, config):
    """For each source of each sum one product of width d_model."""
    count = cls.averages(config)
    return config.d_model * count * (count + 3) // 2


class MirrorSkips(Ends):
  """Keeps the outputs of the first half of the blocks, and adds each before its mirror block in the second half."""

  def __init__(self, config):
    super().__init__(config)
    self.skips = nnx.Param(jnp.zeros(config.num_layers // 2))

  def open(self, x_BTD):
    return BlockOutputs(x_BTD, ())

  def between(self, state, blocks):
    half = self.config.num_layers // 2
    if blocks <= half:
      state = state._replace(earlier=(*state.earlier, state.stream))
    pair = blocks - (self.config.num_layers - half)  # of the next block, from 0
    if pair < 0:
      return state
    *earlier, last = state.earlier
    return BlockOutputs(state.stream + self.skips[...][pair] * last, tuple(earlier))

  def close(self, state):
    return state.stream


@connection('u_net')
class UNet(_ReadsEarlierOutputs):
  """x <- x + s_i y before block L + 1 - i, y the output of block i <= L/2 (Bao et al. 2023, U-ViT; nanogpt, 2024).

  The scalars s start at 0: it starts as pre. U-ViT concatenates and projects; this is the sum of the nanogpt speedruns,
  whose scalars start at 1. Every block is compiled by itself.
  """

  ends = MirrorSkips

  @classmethod
  def check(cls, config):
    super().check(config)
    if config.num_layers < 2:
      raise ConfigError('model.connection=u_net: model.num_layers must be at least 2, for a block and its mirror')

  @classmethod
  def groups(cls, config):
    return (1,) * config.num_layers
