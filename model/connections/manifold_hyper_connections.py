"""Hyper-connections whose mixing matrix is doubly stochastic, so that no depth of them amplifies the streams."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model.connections.base import connection
from model.connections.hyper_connections import INITIAL_SCALE, SeveralStreams, Streams, check_streams, inverse_rms

ITERATIONS = 20  # of Sinkhorn's algorithm, as in the source
FAR = -8.0  # the initial logit of what is not the identity: A differs from it by about exp(FAR)
READ_LOGIT = 1.0  # of the stream that a sublayer mainly reads; of the others, its negative


@connection('manifold_hyper_connections')
class ManifoldHyperConnections(SeveralStreams):
  """X <- A X + B F(N(C X)), A doubly stochastic (Xie et al. 2025, 2512.24880; `lite`: Yang & Gao 2026, 2601.05732).

  The logits of all weights are b + a W N(X), by token, with N the RMS norm over all streams as one vector; its gain is
  left out, since W would absorb it. A is Sinkhorn's normalisation of exp(logits), which ends with the rows: those sum
  to 1 and the columns nearly. With `lite` A is a mixture of all n! permutation matrices by softmax of n! logits, which
  is doubly stochastic exactly. C is the sigmoid and B twice the sigmoid of theirs.

  The sources do not give all initial values. Here W = 0, a = INITIAL_SCALE, B = 1, A is within exp(-8) per entry of the
  identity, and C is largest for stream l mod n in sublayer l: the streams stay n copies of that of `pre`.
  """

  @dataclasses.dataclass(frozen=True)
  class Options:
    """Options of manifold-constrained hyper-connections.

    Attributes:
      streams: n.
      lite: whether the mixing matrix is a mixture of permutations, rather than by Sinkhorn's algorithm.
    """

    streams: int = 4
    lite: bool = False

    def __post_init__(self):
      # 6! = 720 logits for each token and sublayer are already more than the width of many models.
      check_streams(self.streams, 'manifold_hyper_connections', least=2, most=5 if self.lite else 64)

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    n, lite = config.connection_options.streams, config.connection_options.lite
    identity = jnp.arange(math.factorial(n)) == 0 if lite else jnp.eye(n, dtype=bool).reshape(-1)
    self.mix_logits = nnx.Param(jnp.where(identity, 0.0, FAR))
    self.read_logits = nnx.Param(READ_LOGIT * (2 * jax.nn.one_hot(site.index % n, n) - 1))
    self.write_logits = nnx.Param(jnp.zeros(n))
    for name, logits in (('mix', identity.size), ('read', n), ('write', n)):
      setattr(self, f'{name}_projection', self.linear(n * config.d_model, logits))
      setattr(self, f'{name}_scale', nnx.Param(jnp.asarray(INITIAL_SCALE)))

  def reading(self, streams):
    (logits,) = self._weight_logits(streams, 'read')
    return jax.nn.sigmoid(logits)

  def writing(self, streams):
    mix_logits, write_logits = self._weight_logits(streams, 'mix', 'write')
    n = len(streams)
    if self.config.connection_options.lite:
      mix = permutation_mixture(mix_logits, n)
    else:
      mix = sinkhorn(mix_logits.reshape(*mix_logits.shape[:-1], n, n))
    return mix, 2 * jax.nn.sigmoid(write_logits)

  def _weight_logits(self, streams: Streams, *names: str) -> list[jax.Array]:
    kernels = [getattr(self, f'{name}_projection').kernel[...] for name in names]
    by_stream = jnp.split(jnp.concatenate(kernels, 1), len(streams))
    # One product for each stream, not flattened: a concatenated or reshaped copy would be stored for the backward pass.
    products = [x_BTD @ kernel for x_BTD, kernel in zip(streams, by_stream, strict=True)]
    joined = sum(products[1:], products[0])
    ends = list(itertools.accumulate(kernel.shape[1] for kernel in kernels))[:-1]
    scale_BT1 = inverse_rms(streams)
    return [
      getattr(self, f'{name}_logits')[...] + getattr(self, f'{name}_scale')[...] * scale_BT1 * logits
      for name, logits in zip(names, jnp.split(joined, ends, -1), strict=True)
    ]


@jax.checkpoint  # its iterations are recomputed in the backward pass rather than stored
def sinkhorn(logits: jax.Array) -> jax.Array:
  """A doubly stochastic matrix from logits (..., n, n): exp, then columns and rows are divided by their sums in turn.

  Computed on logarithms, so that no logits overflow. The last division is by the sums of the rows.
  """

  def iterate(_, logits):
    for axis in (0, 1):
      logits = logits - jax.nn.logsumexp(logits, axis, keepdims=True)
    return logits

  first = jnp.moveaxis(logits, (-2, -1), (0, 1))  # sums over leading axes are twice as fast as over short last ones
  return jnp.moveaxis(jnp.exp(jax.lax.fori_loop(0, ITERATIONS, iterate, first)), (0, 1), (-2, -1))


def permutation_mixture(logits: jax.Array, n: int) -> jax.Array:
  """The mean of all n! permutation matrices, weighted by the softmax of logits (..., n!); the first is the identity."""
  matrices = np.eye(n, dtype=np.float32)[list(itertools.permutations(range(n)))]
  return (jax.nn.softmax(logits) @ matrices.reshape(-1, n * n)).reshape(*logits.shape[:-1], n, n)
