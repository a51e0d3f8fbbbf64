"""Several residual streams that learned weights mix, and that each sublayer reads from and writes to."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from flax import nnx

from model.connections.base import Connection, Ends, connection
from model.field_checks import ConfigError
from model.linear import Linear
from model.norm import EPSILON

Streams = tuple[jax.Array, ...]  # n streams x_BTD, float32; XLA fuses their sums better than those of one array
INITIAL_SCALE = 0.01  # of the dynamic parts


class StreamEnds(Ends):
  """n copies of the embedding; the head reads the sum of the streams."""

  def open(self, x_BTD):
    return (x_BTD,) * self.config.connection_options.streams

  def close(self, state):
    return sum(state[1:], state[0])


class SeveralStreams(Connection):
  """X <- A X + B F(N(C X)) for n streams X. A subclass computes the weights, from parameters or from the streams."""

  ends = StreamEnds

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    self.norm = self.make_norm()

  def reading(self, streams: Streams) -> jax.Array:
    """C (B, T, n), or (n,) if it does not depend on the streams."""
    raise NotImplementedError

  def writing(self, streams: Streams) -> tuple[jax.Array, jax.Array]:
    """A (B, T, n, n) and B (B, T, n), or without (B, T)."""
    raise NotImplementedError

  def weights(self, state, site):
    mix, write = self.writing(state)
    found = {'reading': (self.reading(state), 1), 'mixing': (mix, 2), 'writing': (write, 1)}
    return {name: jnp.mean(w.reshape(-1, *w.shape[w.ndim - axes :]), 0) for name, (w, axes) in found.items()}

  def read(self, state, site):
    return self.norm(_combine(self.reading(state), state))

  def write(self, state, y_BTD, site):
    mix, write = self.writing(state)
    rows = jnp.concatenate([mix, write[..., None]], -1)  # of each new stream: weights of the old streams, and of y
    return tuple(_combine(rows[..., i, :], (*state, y_BTD)) for i in range(len(state)))

  @staticmethod
  def stream(state):
    """The mean of the streams: it is the stream of `pre` when they are equal, and y adds to it with mean weight 1."""
    return sum(state[1:], state[0]) / len(state)

  @classmethod
  def depth_scale(cls, config, name, branch_outputs):
    """As for one stream; 0 for the projections of the dynamic parts."""
    return 0.0 if name.endswith('_projection') else super().depth_scale(config, name, branch_outputs)

  @classmethod
  def extra_products(cls, config):
    """The sums of streams: n read, n mixed into each of n, and one output written to n, of width d_model."""
    n = config.connection_options.streams
    return 2 * config.num_layers * (n * n + 2 * n) * config.d_model

  def linear(self, width: int, outputs: int) -> Linear:
    """A projection for a dynamic part; float32, as is all arithmetic of the streams."""
    return Linear(width, outputs, False, 'float32')


@connection('hyper_connections')
class HyperConnections(SeveralStreams):
  """X <- A X + B F(N(C X)) for n streams X, weights learned, and dynamic by token (Zhu et al. 2024).

  With `dynamic`, each stream adds INITIAL_SCALE tanh(W N(x)) to the weights with which it is mixed, read and written.
  N is RMS without a gain, which W would absorb. The streams start as copies of the embedding, C as one-hot (stream l
  mod n in sublayer l), A as the identity, B as ones, W as 0: that is `pre` with n copies of its stream.
  """

  @dataclasses.dataclass(frozen=True)
  class Options:
    """Options of hyper-connections.

    Attributes:
      streams: n.
      dynamic: whether the weights depend on the streams.
    """

    streams: int = 4
    dynamic: bool = True

    def __post_init__(self):
      check_streams(self.streams, 'hyper_connections', least=1, most=64)

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    n = config.connection_options.streams
    self.mix_weights = nnx.Param(jnp.eye(n))
    self.read_weights = nnx.Param(jax.nn.one_hot(site.index % n, n))
    self.write_weights = nnx.Param(jnp.ones(n))
    if config.connection_options.dynamic:
      self.mix_projection, self.read_projection, self.write_projection = (
        self.linear(config.d_model, outputs) for outputs in (n, 1, 1)
      )
      self.mix_scale = nnx.Param(jnp.asarray(INITIAL_SCALE))  # also of the reading, as in the source
      self.write_scale = nnx.Param(jnp.asarray(INITIAL_SCALE))

  @classmethod
  def extra_products(cls, config):
    """Also the projections, (d_model, n + 2), which are applied to every stream."""
    n, dynamic = config.connection_options.streams, config.connection_options.dynamic
    return super().extra_products(config) + dynamic * 2 * config.num_layers * (n - 1) * config.d_model * (n + 2)

  def reading(self, streams):
    weights = self.read_weights[...]
    if not self.config.connection_options.dynamic:
      return weights
    by_stream = [self._dynamic(x_BTD, self.read_projection)[0] for x_BTD in streams]
    return weights + self.mix_scale[...] * jnp.concatenate(by_stream, -1)

  def writing(self, streams):
    mix, write = self.mix_weights[...], self.write_weights[...]
    if not self.config.connection_options.dynamic:
      return mix, write
    columns = [self._dynamic(x_BTD, self.mix_projection, self.write_projection) for x_BTD in streams]
    mix += self.mix_scale[...] * jnp.stack([column[0] for column in columns], -1)
    write += self.write_scale[...] * jnp.concatenate([column[1] for column in columns], -1)
    return mix, write

  @staticmethod
  def _dynamic(x_BTD, *projections: Linear) -> list[jax.Array]:
    scale_BT1 = inverse_rms((x_BTD,))
    # Not flattened: under the scan a reshaped copy of each stream would be stored for the backward pass.
    projected = x_BTD @ jnp.concatenate([projection.kernel[...] for projection in projections], 1)
    ends = list(itertools.accumulate(projection.kernel.shape[1] for projection in projections))[:-1]
    return jnp.split(jnp.tanh(scale_BT1 * projected), ends, -1)


def inverse_rms(streams: Streams) -> jax.Array:
  """1 / sqrt(mean of squares), over the streams as one vector, (B, T, 1)."""
  squares = sum(jnp.mean(x_BTD * x_BTD, -1, keepdims=True) for x_BTD in streams)
  return jax.lax.rsqrt(squares / len(streams) + EPSILON)


def check_streams(streams: int, name: str, least: int, most: int) -> None:
  """Raises ConfigError for a number of streams outside of least to most."""
  if not least <= streams <= most:
    raise ConfigError(f'model.connection={name}:streams={streams}: must be from {least} to {most}')


def _combine(weights: jax.Array, arrays: Streams) -> jax.Array:
  """The sum of arrays (B, T, D), each times its weight, (B, T) or a scalar."""
  terms = [weights[..., i, None] * x_BTD for i, x_BTD in enumerate(arrays)]
  return sum(terms[1:], terms[0])


def composite_gain(mix: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The gain of the streams through the mixing of the first l sublayers alone, A_l ... A_1, for each l.

  Args:
    mix: the mixing matrices of consecutive sublayers, (S, n, n), such as the forward statistics `mixing`.

  Returns:
    The largest absolute row sum, the gain of n equal streams, and the largest absolute column sum, that of n equal
    gradients on the way back (2512.24880, section 3); each (S,). Both are 1 for doubly stochastic matrices.
  """
  products = jax.lax.associative_scan(lambda first, second: second @ first, mix)
  rows, columns = (jnp.max(jnp.abs(jnp.sum(products, axis)), -1) for axis in (-1, -2))
  return rows, columns
