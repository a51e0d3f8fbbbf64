"""The whole model: embedding, a stack of blocks, final norm, logits. All Flax plumbing ends here.

`init` and `apply` are pure functions of a plain tree of arrays; `jax.jit`, `jax.grad` and `jax.vmap` need no more.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model.block import Block
from model.config import ModelConfig
from model.initialisation import head_deviation, initial_values, token_deviation
from model.norm import make_norm
from model.observation import Stats
from model.position import sinusoidal
from model.residual import TAP_SIZE, fork

nnx.set_graph_mode(False)
nnx.set_graph_updates(False)

Params = Any  # a nested dict of arrays; those under 'blocks' have a leading layer axis
Constrain = Callable[[jax.Array, Params], tuple[jax.Array, Params]]


def unconstrained(x_BTD: jax.Array, layer: Params) -> tuple[jax.Array, Params]:
  """The stream and a layer's parameters, wherever they lie; see `apply`."""
  return x_BTD, layer


class Embedding(nnx.Module):
  """Token vectors, and position vectors if they are learned."""

  def __init__(self, config: ModelConfig):
    self.token = nnx.Param(jnp.zeros((config.vocab_size, config.d_model)))
    learned = config.position == 'learned'
    self.position = nnx.Param(jnp.zeros((config.num_positions, config.d_model))) if learned else None
    self.config = config

  def __call__(self, tokens_BT: jax.Array) -> jax.Array:
    x_BTD = self.token[...][tokens_BT]
    length = tokens_BT.shape[1]
    if self.position is not None:
      if length > self.config.num_positions:  # an index past the end would be clamped without a word
        raise ValueError(f'{length} positions, and the learned table has {self.config.num_positions}')
      return x_BTD + self.position[...][:length]
    if self.config.position == 'sinusoidal':
      return x_BTD + sinusoidal(length, self.config.d_model)
    return x_BTD


class Head(nnx.Module):
  """Logits: its own kernel, or the embedding table transposed (Press & Wolf 2017).

  A tied product is scaled by (head deviation / embedding deviation) of the initialisation, 1/sqrt(D) for `fan_in`,
  so that tied and untied models start with logits of the same size.
  """

  def __init__(self, config: ModelConfig):
    self.kernel = None if config.tie_embeddings else nnx.Param(jnp.zeros((config.d_model, config.vocab_size)))
    self.bias = nnx.Param(jnp.zeros(config.vocab_size)) if config.use_bias else None
    self.config = config

  def __call__(self, x_BTD: jax.Array, token_VD: jax.Array) -> jax.Array:
    config = self.config
    if self.kernel is None:
      kernel_DV = token_VD.T * (head_deviation(config) / token_deviation(config))
    else:
      kernel_DV = self.kernel[...]
    flat = x_BTD.reshape(-1, config.d_model).astype(config.dtype)
    logits = jnp.dot(flat, kernel_DV.astype(config.dtype), preferred_element_type=jnp.float32)
    logits = logits if self.bias is None else logits + self.bias[...]
    return logits.reshape(*x_BTD.shape[:2], config.vocab_size)


class Transformer(nnx.Module):
  """Embedding, blocks (stacked on a leading layer axis), final norm where the placement has one, head."""

  def __init__(self, config: ModelConfig):
    self.embedding = Embedding(config)
    norm = functools.partial(make_norm, config.norm, config.d_model, config.use_bias)
    self.embedding_norm = norm() if config.embedding_norm else None
    self.blocks = nnx.vmap(lambda _: Block(config))(jnp.arange(config.num_layers))
    self.final_norm = norm() if config.has_final_norm else None
    self.head = Head(config)
    self.config = config

  def __call__(
    self,
    tokens_BT: jax.Array,
    taps: dict[str, jax.Array],
    dropout_key: jax.Array | None,
    observe: bool,
    constrain: Constrain,
    documents_BT: jax.Array | None,
  ):
    x_BTD = self.embedding(tokens_BT)
    if self.embedding_norm is not None:
      x_BTD = self.embedding_norm(x_BTD)
    x_BTD, stats = self._run_blocks(x_BTD, taps['blocks'], dropout_key, observe, constrain, documents_BT)
    x_BTD, _ = fork(x_BTD, taps['output'])  # its skip gradient alone: what enters the last sublayer from above
    if self.final_norm is not None:
      x_BTD = self.final_norm(x_BTD)
    return self.head(x_BTD, self.embedding.token[...]), stats

  def _run_blocks(self, x_BTD, taps_L, dropout_key, observe, constrain, documents_BT):
    config = self.config
    definition, params_L = nnx.split(self.blocks, nnx.Param)
    keys_L = None if dropout_key is None else jax.random.split(dropout_key, config.num_layers)

    def run_block(x_BTD, layer):
      params, taps, key = layer
      x_BTD, params = constrain(x_BTD, params)
      return nnx.merge(definition, params)(x_BTD, taps, key, observe, documents_BT)

    if config.remat:
      # Inside a loop of one block a turn nothing can be shared between forward and backward; between blocks it could.
      run_block = jax.checkpoint(run_block, prevent_cse=config.unroll > 1)
    return jax.lax.scan(run_block, x_BTD, (params_L, taps_L, keys_L), unroll=min(config.unroll, config.num_layers))


@functools.cache
def _definition(config: ModelConfig):
  """The model's structure and the shapes of its parameters; no number is computed."""
  definition, params = nnx.split(nnx.eval_shape(lambda: Transformer(config)), nnx.Param)
  return definition, nnx.to_pure_dict(params)


def param_shapes(config: ModelConfig) -> Params:
  """The parameter tree as `jax.ShapeDtypeStruct`s."""
  return _definition(config)[1]


def init(config: ModelConfig, key: jax.Array) -> Params:
  """Initial parameters, float32, by the table in model/initialisation.py.

  The same (key, path, layer, shape) gives the same numbers in every variant and at every depth.
  """
  return initial_values(config, param_shapes(config), key)


def zero_taps(config: ModelConfig, positions: int | None = None) -> dict[str, jax.Array]:
  """Gradient taps: one for each sublayer, (L, 2, 3), and one for the stack's output, (3,); see model/residual.py.

  Args:
    config: the switches.
    positions: T, to keep the positions of a sequence apart: then (L, 2, T, 3) and (T, 3).
  """
  tap = (TAP_SIZE,) if positions is None else (positions, TAP_SIZE)
  return {'blocks': jnp.zeros((config.num_layers, 2, *tap)), 'output': jnp.zeros(tap)}


def apply(
  config: ModelConfig,
  params: Params,
  tokens_BT: jax.Array,
  taps: dict[str, jax.Array] | None = None,
  dropout_key: jax.Array | None = None,
  observe: bool = False,
  constrain: Constrain = unconstrained,
  documents_BT: jax.Array | None = None,
) -> tuple[jax.Array, Stats]:
  """Runs the model.

  Args:
    config: the switches.
    params: as `init` makes them.
    tokens_BT: token ids, int32.
    taps: as `zero_taps` makes them; their gradient is the two-path split.
    dropout_key: a key in training with dropout; None (evaluation) drops nothing.
    observe: whether to look into the blocks too, at some cost; the logits are the same.
    constrain: is given the stream and the layer's parameters at the entry of each block, and returns both; where there
      are several devices, says where they lie. Else the compiler may split the stream over its width and gather it
      whole inside every block, and gather kernels side by side.
    documents_BT: the number of the document that each position belongs to; attention stays within it. Positions are
      those of the sequence still: with `rotary` and `none`, which see distances or nothing, the logits of a document
      are those it has alone. None: all positions are of one document.

  Returns:
    logits_BTV in float32, and what the blocks saw, with a leading layer axis; see model/observation.py.

  Raises:
    ValueError: if the sequence is longer than a learned position table.
  """
  definition, _ = _definition(config)
  taps = zero_taps(config) if taps is None else taps
  key = dropout_key if config.dropout else None
  return nnx.merge(definition, params)(tokens_BT, taps, key, observe, constrain, documents_BT)
