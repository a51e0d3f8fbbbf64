"""The whole model: embedding, a stack of blocks, final norm, logits.

`init` and `apply` are pure functions on a plain pytree of arrays, so callers use `jax.jit`, `jax.grad` and `jax.vmap`
directly; Flax is an implementation detail.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model.block import Block, merge_module, split_module
from model.config import ModelConfig
from model.embedding import Embedding, Head
from model.forward_statistics import Stats
from model.initialisation import initial_values
from model.norm import make_norm
from model.residual import TAP_SIZE, fork

Params = Any  # a nested dict of arrays; those under 'blocks' have a leading layer axis
Constrain = Callable[[Any, Params], tuple[Any, Params]]


def unconstrained(state: Any, layer: Params) -> tuple[Any, Params]:
  """The default `constrain` of `apply`: the compiler chooses the sharding of the state and of a layer's parameters."""
  return state, layer


class Transformer(nnx.Module):
  """logits = head(final_norm(blocks(embedding(tokens)))); parameters of the blocks are stacked on a layer axis."""

  def __init__(self, config: ModelConfig):
    norm = functools.partial(make_norm, config.norm, config.d_model, config.use_bias)
    self.embedding = Embedding(config)
    self.embedding_norm = norm() if config.embedding_norm else None
    stack = nnx.vmap(lambda layer: Block(config, layer), graph=False, graph_updates=False)
    self.blocks = stack(jnp.arange(config.num_layers))
    self.ends = config.connection_class.ends(config)
    self.final_norm = norm() if config.connection_class.has_final_norm(config) else None
    self.head = Head(config)
    self.config = config

  def __call__(
    self,
    tokens_BT: jax.Array,
    taps: dict[str, jax.Array],
    dropout_key: jax.Array | None,
    full_stats: bool,
    constrain: Constrain,
    documents_BT: jax.Array | None,
  ) -> tuple[jax.Array, Stats]:
    """Runs the model; arguments and results as in `apply`.

    Args:
      tokens_BT: token ids, int32.
      taps: from `zero_taps`.
      dropout_key: None for no dropout.
      full_stats: whether to compute all forward statistics.
      constrain: applied to the residual state and a layer's parameters before each block.
      documents_BT: the document index of each position, int32; None: a single document.

    Returns:
      logits_BTV, float32, and the forward statistics of the blocks, with a leading layer axis.
    """
    x_BTD = self.embedding(tokens_BT)
    if self.embedding_norm is not None:
      x_BTD = self.embedding_norm(x_BTD)
    state, stats = self._run_blocks(
      self.ends.open(x_BTD), taps['blocks'], dropout_key, full_stats, constrain, documents_BT
    )
    state, _ = fork(state, taps['output'])  # measures the gradient at the stack's output
    x_BTD = self.ends.close(state)
    if self.final_norm is not None:
      x_BTD = self.final_norm(x_BTD)
    return self.head(x_BTD, self.embedding.token[...]), stats

  def _run_blocks(self, state, taps_L, dropout_key, full_stats, constrain, documents_BT):
    """Each group of blocks as one scan over the layer axis, so that compile time does not grow with depth."""
    config, connect = self.config, self.config.connection_class
    definition, params_L = nnx.split(self.blocks, nnx.Param, graph=False)
    keys_L = None if dropout_key is None else jax.random.split(dropout_key, config.num_layers)

    def run_block(fixed, state, layer):
      params, taps, key, index = layer
      state, params = constrain(state, params)
      return nnx.merge(definition, params)(state, taps, key, full_stats, documents_BT, index, fixed)

    layers, first = (params_L, taps_L, keys_L, jnp.arange(config.num_layers)), 0
    stats: list[Stats] = []
    for length in connect.groups(config):
      state = self.ends.between(state, first) if first else state
      step: Callable = functools.partial(run_block, connect.fixed(config, jax.lax.stop_gradient(state)))
      if config.remat:
        # A barrier against CSE is needed only in an iteration of several blocks: XLA merges nothing across iterations.
        step = jax.checkpoint(step, prevent_cse=config.unroll > 1)
      group = jax.tree.map(lambda x, first=first, length=length: x[first : first + length], layers)
      state, measured = jax.lax.scan(step, state, group, unroll=min(config.unroll, length))
      first, stats = first + length, [*stats, measured]
    return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), *stats) if len(stats) > 1 else stats[0]


@functools.cache
def _definition(config: ModelConfig):
  """The model's structure and the shapes of its parameters; nothing is computed on a device."""
  return split_module(nnx.eval_shape(lambda: Transformer(config), graph=False, graph_updates=False))


def param_shapes(config: ModelConfig) -> Params:
  """The parameter tree as `jax.ShapeDtypeStruct`s."""
  return _definition(config)[1]


def init(config: ModelConfig, key: jax.Array) -> Params:
  """Draws the initial parameters from the distributions in model/initialisation.py.

  Args:
    config: the model config.
    key: a `jax.random` key; the same (key, path, layer, shape) gives the same values in every variant and at every
      depth.

  Returns:
    A nested dict of float32 arrays; those under 'blocks' have a leading layer axis.
  """
  return initial_values(config, param_shapes(config), key, lambda: split_module(Transformer(config))[1])


def zero_taps(config: ModelConfig, positions: int | None = None) -> dict[str, jax.Array]:
  """Gradient taps for every sublayer and for the stack's output; see model/residual.py.

  Args:
    config: the model config.
    positions: the sequence length T, for a measurement at each position; None sums over positions.

  Returns:
    Zeros, float32: `blocks` (L, 2, 3) and `output` (3,), or with positions (L, 2, T, 3) and (T, 3).
  """
  tap = (TAP_SIZE,) if positions is None else (positions, TAP_SIZE)
  return {'blocks': jnp.zeros((config.num_layers, 2, *tap)), 'output': jnp.zeros(tap)}


def apply(
  config: ModelConfig,
  params: Params,
  tokens_BT: jax.Array,
  taps: dict[str, jax.Array] | None = None,
  dropout_key: jax.Array | None = None,
  full_stats: bool = False,
  constrain: Constrain = unconstrained,
  documents_BT: jax.Array | None = None,
) -> tuple[jax.Array, Stats]:
  """Runs the model.

  Args:
    config: the model config.
    params: the parameters, in the structure that `init` returns.
    tokens_BT: token ids, int32.
    taps: from `zero_taps`; the gradient with respect to them measures the split into skip path and residual branch
      (model/residual.py). None: not measured.
    dropout_key: a `jax.random` key in training; None (evaluation) for no dropout.
    full_stats: whether to compute all forward statistics, which costs time; otherwise only the mean square of the
      stream. The logits are the same.
    constrain: (residual state, a layer's parameters) -> both, called at the start of each block to constrain their
      sharding on several devices. Otherwise the compiler may shard the stream along its width and all-gather it
      within every block, or gather kernels one by one.
    documents_BT: the document index of each position, int32: positions attend only within their document; None: a
      single document. Positions are counted from the start of the sequence, not of the document. With `rotary`, which
      depends only on distances, and `none`, the logits of a document are those that it would have on its own.

  Returns:
    logits_BTV, float32, and the forward statistics of the blocks (model/forward_statistics.py), with a leading layer
    axis.

  Raises:
    ValueError: if the sequence is longer than the learned position table.
  """
  definition, _ = _definition(config)
  taps = zero_taps(config) if taps is None else taps
  key = dropout_key if config.stochastic else None
  return merge_module(definition, params)(tokens_BT, taps, key, full_stats, constrain, documents_BT)
