"""A sublayer reads the outputs of all earlier ones, by attention over depth."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model.connections.base import Connection, Ends, Site, connection
from model.field_checks import ConfigError
from model.norm import EPSILON

if TYPE_CHECKING:
  pass


class Sources(NamedTuple):
  """What can be read: arrays (B, T, D), float32.

  Attributes:
    earlier: the embedding, and the outputs of the groups (of the sublayers in the full form) that are finished.
    current: the sum of the outputs so far in this group; in the full form the outputs of the two sublayers of this
      block. Zeros until written.
  """

  earlier: tuple[jax.Array, ...]
  current: tuple[jax.Array, ...]


class Reader(Ends):
  """Opens the stack with the embedding as the only source; the head reads as a sublayer does."""

  def __init__(self, config):
    super().__init__(config)
    self.reader = nnx.Param(jnp.zeros(config.d_model))

  def open(self, x_BTD):
    outputs = 1 if self.config.connection_options.groups else 2
    return Sources((x_BTD,), (jnp.zeros_like(x_BTD),) * outputs)

  def between(self, state, blocks):
    return Sources((*state.earlier, *state.current), tuple(map(jnp.zeros_like, state.current)))

  def close(self, state):
    return read_sources(self.reader[...], (*state.earlier, *state.current), None, None)


@connection('attention_residuals')
class AttentionResiduals(Connection):
  """F(N(sum_i p_i v_i)), p = softmax_i(w . N(v_i)) over earlier outputs v_i (Kimi Team 2026, Attention Residuals).

  v_0 is the embedding. w, a vector for each sublayer and one for the head, starts at 0: the input is the mean of the
  sources. With `groups=0`, the full form, each sublayer's output is a source; otherwise the blocks of the stack are
  split evenly into that many groups, or one per block in a shallower stack, and a source is the sum of a group's
  outputs, with the group of the reader as far as it has come. The N of the weights is RMSNorm without a gain, which w
  would absorb, whatever model.norm. The full form compiles every block by itself.
  """

  ends = Reader

  @dataclasses.dataclass(frozen=True)
  class Options:
    """The options.

    Attributes:
      groups: the number of groups of blocks whose outputs are summed; 0: none, each output is a source.
    """

    groups: int = 8

    def __post_init__(self):
      if self.groups < 0:
        raise ConfigError(
          f'model.connection=attention_residuals:groups={self.groups}: must be positive, or 0 for every sublayer'
        )

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    self.norm = self.make_norm()
    self.reader = nnx.Param(jnp.zeros(config.d_model))

  @classmethod
  def groups(cls, config):
    count = min(config.connection_options.groups or config.num_layers, config.num_layers)
    return tuple(len(blocks) for blocks in np.array_split(np.arange(config.num_layers), count))

  @classmethod
  def fixed(cls, config, state):
    """The finished sources, and 1/rms of each: they are the same for all blocks of the group."""
    return state.earlier, tuple(map(_inverse_rms, state.earlier))

  @staticmethod
  def stream(state):
    """The sum of all sources: what a plain residual stream would hold here."""
    return sum(state.current, sum(state.earlier[1:], state.earlier[0]))

  def _current(self, state: Sources, site: Site) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
    """Which of `state.current` the sublayer reads, and whether it has been written; None: it has."""
    if self.sublayer == 'feed_forward':
      return state.current[:1], None
    lengths = self.groups(self.config)
    if max(lengths) == 1:
      return (), None
    starts = jnp.asarray(np.cumsum((0, *lengths[:-1])) + 1)
    return state.current, jnp.all(site.block != starts)

  def read(self, state, site):
    current, written = self._current(state, site)
    return self.norm(read_sources(self.reader[...], (*state.earlier, *current), written, site.fixed))

  def write(self, state, y_BTD, site):
    if len(state.current) == 1:
      return state._replace(current=(state.current[0] + y_BTD,))
    first, second = state.current
    return state._replace(current=(y_BTD, second) if self.sublayer == 'attention' else (first, y_BTD))

  @classmethod
  def _sources_read(cls, config) -> list[int]:
    """The number of sources of every sublayer, and of the head."""
    counts, finished = [], 1
    for length in cls.groups(config):
      if config.connection_options.groups:
        counts += [finished] + [finished + 1] * (2 * length - 1)
        finished += 1
      else:
        counts += [finished, finished + 1]
        finished += 2
    return [*counts, finished]

  @classmethod
  def extra_products(cls, config):
    """For each source of each reader, the product with w and the sum of sources, of width d_model each."""
    return 2 * config.d_model * sum(cls._sources_read(config))

  def weights(self, state: Sources, site: Site) -> dict[str, jax.Array]:
    """`reading`: p, averaged over the tokens; the embedding first, then every group, or every sublayer, in order."""
    current, written = self._current(state, site)
    sources = (*state.earlier, *current)
    _, p_NBT = _weights(self.reader[...], sources, tuple(map(_inverse_rms, sources)), written)
    reading = jnp.mean(p_NBT, (1, 2))
    return {'reading': jnp.pad(reading, (0, max(self._sources_read(self.config)[:-1]) - len(sources)))}


def read_sources(
  w_D: jax.Array, sources: Sequence[jax.Array], written: jax.Array | None, fixed: tuple | None
) -> jax.Array:
  """sum_i p_i v_i with p = softmax_i(w . N(v_i)), (B, T, D).

  Args:
    w_D: the reader's vector.
    sources: v_i, (B, T, D) each; at least one.
    written: whether the last one is a source yet; None: it is.
    fixed: the values of the first sources and their 1/rms, which are then not computed or stored again; None: of none.
  """
  values, inverse = fixed or ((), ())
  rest = tuple(sources)[len(values) :]
  return _read(w_D, tuple(sources), (*values, *rest), (*inverse, *map(_inverse_rms, rest)), written)


def _inverse_rms(v_BTD):
  return jax.lax.rsqrt(jnp.mean(jnp.square(v_BTD), -1) + EPSILON)


def _weights(w_D, values, inverse, written):
  """The logits w . N(v_i) and their softmax, both (sources, B, T)."""
  logits_NBT = jnp.stack([(v @ w_D) * r for v, r in zip(values, inverse, strict=True)])
  if written is None:
    return logits_NBT, jax.nn.softmax(logits_NBT, 0)
  readable = jnp.ones(len(values), bool).at[-1].set(written)[:, None, None]
  return logits_NBT, jax.nn.softmax(jnp.where(readable, logits_NBT, -jnp.inf), 0)


@jax.custom_vjp
def _read(w_D, sources, values, inverse, written):
  """`sources` receive the gradient; `values`, equal to them, and `inverse`, their 1/rms, are what is computed with."""
  return _read_forward(w_D, sources, values, inverse, written)[0]


def _read_forward(w_D, sources, values, inverse, written):
  del sources
  logits_NBT, p_NBT = _weights(w_D, values, inverse, written)
  h_BTD = sum(p[..., None] * v for p, v in zip(p_NBT, values, strict=True))
  return h_BTD, (w_D, values, inverse, logits_NBT, p_NBT)


def _read_backward(saved, g_BTD):
  """The gradients with respect to w and every v_i.

  With c_i = g . v_i and s_i = p_i (c_i - sum_j p_j c_j), the gradient of the logit e_i = r_i w . v_i:

    dv_i = p_i g + s_i (r_i w - e_i r_i^2 v_i / D);  dw = sum over all positions and i of s_i r_i v_i.
  """
  w_D, values, inverse, logits_NBT, p_NBT = saved
  c_NBT = jnp.stack([jnp.einsum('btd,btd->bt', g_BTD, v) for v in values])
  s_NBT = p_NBT * (c_NBT - jnp.sum(p_NBT * c_NBT, 0))
  dw_D, gradients = jnp.zeros_like(w_D), []
  for v_BTD, r_BT, e_BT, p_BT, s_BT in zip(values, inverse, logits_NBT, p_NBT, s_NBT, strict=True):
    scaled_BT = s_BT * r_BT
    through_norm_BT = scaled_BT * e_BT * r_BT / w_D.size
    gradients.append(p_BT[..., None] * g_BTD + scaled_BT[..., None] * w_D - through_norm_BT[..., None] * v_BTD)
    dw_D += jnp.einsum('bt,btd->d', scaled_BT, v_BTD)
  return dw_D, tuple(gradients), None, None, None


_read.defvjp(_read_forward, _read_backward)
