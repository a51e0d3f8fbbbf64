"""The Transformer block: attention and feed-forward, each connected to the residual state."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model.attention import Attention
from model.config import ModelConfig
from model.connections import Site
from model.feed_forward import FeedForward
from model.forward_statistics import Stats, branch_statistics, by_sublayer, merge, stream_statistics
from model.residual import fork

Branch = Callable[..., jax.Array]
SUBLAYERS = ('attention', 'feed_forward')


class Sublayer(NamedTuple):
  """The state before a sublayer, the term that its branch adds, (B, T, D), and the state after it; float32."""

  input: Any
  term: jax.Array
  output: Any


class Block(nnx.Module):
  """u = a x + attention(N(x)); y = b u + feed_forward(N(u)) with pre-norm; model/connections/ has the other designs."""

  def __init__(self, config: ModelConfig, layer: jax.Array | int = 0):
    self.attention, self.feed_forward = Attention(config), FeedForward(config)
    connect = config.connection_class
    self.attention_connection = connect(config, 'attention', self._site(config, layer, 0))
    self.feed_forward_connection = connect(config, 'feed_forward', self._site(config, layer, 1))
    self.config = config

  def __call__(
    self,
    state: Any,
    taps: jax.Array,
    dropout_key: jax.Array | None = None,
    full_stats: bool = False,
    documents_BT: jax.Array | None = None,
    layer: jax.Array | int = 0,
    fixed: Any = None,
  ) -> tuple[Any, Stats]:
    """Runs the block.

    Args:
      state: the residual state, as the connection has it: for most the stream x_BTD, float32.
      taps: zeros, float32, (2, 3) or (2, T, 3): a `fork` tap for each sublayer.
      dropout_key: None for no dropout.
      full_stats: whether to compute all forward statistics; otherwise only the mean square of the stream.
      documents_BT: the document index of each position, int32: positions attend only within their document; None: a
        single document.
      layer: the index of the block, from 0.
      fixed: for `Site.fixed`.

    Returns:
      The state after the block, and its forward statistics; see model/forward_statistics.py.
    """
    keys = (None, None, None) if dropout_key is None else jax.random.split(dropout_key, 3)
    stats: list[Stats] = []

    def attention(x_BTD, values=None, mix=None):
      if full_stats:
        stats.append(self.attention.statistics(x_BTD, documents_BT))
      return self._dropout(self.attention(x_BTD, keys[0], documents_BT, values, mix), keys[1])

    def feed_forward(x_BTD, mix=None):
      if full_stats:
        stats.append(self.feed_forward.statistics(x_BTD))
      return self._dropout(self.feed_forward(x_BTD, mix), keys[2])

    sites = [dataclasses.replace(self._site(self.config, layer, k, dropout_key), fixed=fixed) for k in range(2)]
    run = self._parallel if self.config.parallel else self._sequential
    sublayers = run(state, taps, attention, feed_forward, sites)
    stream = self.attention_connection.stream
    statistics = by_sublayer(*(stream_statistics(stream(sublayer.output)) for sublayer in sublayers))
    if full_stats:
      stats.append(by_sublayer(*(branch_statistics(stream(s.input), s.term, stream(s.output)) for s in sublayers)))
      connections = self.attention_connection, self.feed_forward_connection
      states = jax.lax.stop_gradient([s.input for s in sublayers])
      weights = [c.weights(state, site) for c, state, site in zip(connections, states, sites, strict=True)]
      stats.append(by_sublayer(*({'mean': each, 'max': {}} for each in weights)))
    return sublayers[1].output, merge(statistics, *stats)

  def _sequential(self, state, taps, attention: Branch, feed_forward: Branch, sites) -> tuple[Sublayer, Sublayer]:
    """The feed-forward reads the state that attention has written."""

    def sublayer(state, tap, F, connection, site):
      skip, branch = fork(state, tap)
      return Sublayer(state, *connection.run(skip, branch, F, site))

    first = sublayer(state, taps[0], attention, self.attention_connection, sites[0])
    return first, sublayer(first.output, taps[1], feed_forward, self.feed_forward_connection, sites[1])

  def _parallel(self, x_BTD, taps, attention: Branch, feed_forward: Branch, sites) -> tuple[Sublayer, Sublayer]:
    """Both branches read N(x), as in GPT-J (Wang & Komatsuzaki 2021); the two forks are chained on the skip path."""
    first, second = self.attention_connection, self.feed_forward_connection
    skip_BTD, into_attention_BTD = fork(x_BTD, taps[0])
    skip_BTD, into_feed_forward_BTD = fork(skip_BTD, taps[1])
    attention_BTD = first.term(attention(first.read(into_attention_BTD, sites[0])), sites[0])
    feed_forward_BTD = second.term(feed_forward(first.read(into_feed_forward_BTD, sites[0])), sites[1])
    u_BTD = first.write(skip_BTD, attention_BTD, sites[0])
    return Sublayer(x_BTD, attention_BTD, u_BTD), Sublayer(x_BTD, feed_forward_BTD, u_BTD + feed_forward_BTD)

  @staticmethod
  def _site(config: ModelConfig, layer, sublayer: int, dropout_key: jax.Array | None = None) -> Site:
    """The place of a sublayer, 0 or 1, of this layer; its random numbers are not those of dropout."""
    key = None if dropout_key is None else jax.random.fold_in(dropout_key, sublayer)
    return Site(2 * layer + sublayer + 1, 2 * config.num_layers, key)

  def _dropout(self, y_BTD, key):
    """The output of a branch in float32, with dropout."""
    y_BTD = y_BTD.astype(jnp.float32)
    if key is None or not self.config.dropout:
      return y_BTD
    keep_BTD = jax.random.bernoulli(key, 1 - self.config.dropout, y_BTD.shape)
    return jnp.where(keep_BTD, y_BTD / (1 - self.config.dropout), 0)


def split_module(module: nnx.Module) -> tuple[nnx.GraphDef, Any]:
  """The structure of a module and its parameters, a nested dict; `merge_module` is the inverse.

  The parameters of a connection are named after its sublayer, `attention_norm` for `attention_connection/norm`.
  """
  definition, params = nnx.split(module, nnx.Param, graph=False)
  return definition, _prefixed(nnx.to_pure_dict(params))


def merge_module(definition: nnx.GraphDef, params: Any) -> Any:
  """The module of this structure with these parameters."""
  return nnx.merge(definition, _nested(params))


def _prefixed(params: Any) -> Any:
  """{'attention_connection': {'norm': x}} -> {'attention_norm': x}, at any level."""
  if not isinstance(params, dict):
    return params
  named: dict[str, Any] = {}
  for name, value in params.items():
    sublayer, connection, rest = name.rpartition('_connection')
    if connection and not rest:
      named |= {f'{sublayer}_{part}': _prefixed(inner) for part, inner in value.items()}
    else:
      named[name] = _prefixed(value)
  return named


def _nested(params: Any) -> Any:
  """The inverse of `_prefixed`."""
  if not isinstance(params, dict):
    return params
  nested: dict[str, Any] = {}
  for name, value in params.items():
    sublayer = next((s for s in SUBLAYERS if name.startswith(f'{s}_')), None)
    if sublayer is None:
      nested[name] = _nested(value)
    else:
      nested.setdefault(f'{sublayer}_connection', {})[name.removeprefix(f'{sublayer}_')] = _nested(value)
  return nested
