"""Single modules with chosen weights, and single blocks of an initialised model."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model.block import Block, merge_module, split_module
from model.config import ModelConfig
from model.norm import LayerNorm
from model.residual import TAP_SIZE
from training.known_names import check_names

NO_TAPS = jnp.zeros((2, TAP_SIZE))


def module_with_weights(module: Callable[[ModelConfig], nnx.Module], config: ModelConfig, weights: Mapping[str, Any]):
  """A module with the given weights. All other kernels, biases and scales are 0, all other gains 1.

  Args:
    module: Attention, FeedForward or Block.
    config: the model config.
    weights: by parameter path, such as {'attention/query/kernel': [[1.0]]}; arrays or nested lists.

  Raises:
    ConfigError: for a path that the module does not have; the message suggests the most similar one.
  """
  definition, shapes = split_module(_shapes(lambda: module(config)))
  paths = {'/'.join(key.key for key in path) for path, _ in jax.tree.leaves_with_path(shapes)}
  check_names(weights, paths, f'parameter of {module.__name__}')

  def fill(path, leaf):
    name = '/'.join(key.key for key in path)
    if name not in weights:
      return (jnp.ones if name.endswith('gain') else jnp.zeros)(leaf.shape)
    return jnp.asarray(weights[name], jnp.float32).reshape(leaf.shape)

  return merge_module(definition, jax.tree.map_with_path(fill, shapes))


def layer_norm(d_model: int) -> LayerNorm:
  """LayerNorm with a gain of 1 and no bias."""
  norm = LayerNorm(d_model, use_bias=False)
  norm.gain[...] = jnp.ones(d_model)
  return norm


def block_with_params(config: ModelConfig, params: Any) -> Any:
  """A Block with the parameters of one layer: those of `params['blocks']` without the layer axis."""
  definition, _ = split_module(_shapes(lambda: Block(config)))
  return merge_module(definition, params)


def first_block(config: ModelConfig, params: Any) -> Any:
  """The first Block of a model with the parameters that `model.init` returns."""
  return block_with_params(config, jax.tree.map(lambda leaf: leaf[0], params['blocks']))


def residual_streams(config: ModelConfig, blocks: Any, x_BTD: jax.Array) -> jax.Array:
  """The residual stream before every block and after the last one, (L + 1, B, T, D).

  Args:
    config: the model config.
    blocks: `params['blocks']` of `model.init`.
    x_BTD: the input of the first block.
  """

  def step(x_BTD, params):
    y_BTD, _ = block_with_params(config, params)(x_BTD, NO_TAPS)
    return y_BTD, y_BTD

  return jnp.concatenate([x_BTD[None], jax.lax.scan(step, x_BTD, blocks)[1]])


def map_params(params: Any, function: Callable[[str, Any], Any]) -> Any:
  """Replaces each parameter (or its shape) by function(path, parameter); paths look like `attention/query/kernel`."""
  return jax.tree.map_with_path(lambda path, leaf: function('/'.join(key.key for key in path), leaf), params)


def _shapes(make: Callable[[], nnx.Module]) -> nnx.Module:
  return nnx.eval_shape(make, graph=False, graph_updates=False)
