"""BlockLab's own modules with weights set by hand, or one layer at a time: where every number is known beforehand."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model.block import Block
from model.config import ModelConfig
from model.residual import TAP_SIZE
from training.known_names import check_names

NO_TAPS = jnp.zeros((2, TAP_SIZE))


def by_hand(kind: Callable[[ModelConfig], nnx.Module], config: ModelConfig, weights: Mapping[str, Any]) -> Any:
  """A module with the given weights; every other kernel, bias and scale is 0, every other gain 1.

  Args:
    kind: Attention, FeedForward or Block.
    config: the switches.
    weights: by path, as {'attention/query/kernel': [[1.0]]}; arrays or nested lists.

  Raises:
    ConfigError: for a path that the module does not have, with the nearest one.
  """
  definition, state = nnx.split(nnx.eval_shape(lambda: kind(config)), nnx.Param)
  shapes = nnx.to_pure_dict(state)
  paths = {'/'.join(key.key for key in path) for path, _ in jax.tree.leaves_with_path(shapes)}
  check_names(weights, paths, f'parameter of {kind.__name__}')

  def fill(path, leaf):
    name = '/'.join(key.key for key in path)
    if name not in weights:
      return (jnp.ones if name.endswith('gain') else jnp.zeros)(leaf.shape)
    return jnp.asarray(weights[name], jnp.float32).reshape(leaf.shape)

  return nnx.merge(definition, jax.tree.map_with_path(fill, shapes))


def layer(config: ModelConfig, blocks: Any) -> Any:
  """One Block of a model: `blocks` is params['blocks'] of `model.init`, without its layer axis."""
  definition, _ = nnx.split(nnx.eval_shape(lambda: Block(config)), nnx.Param)
  return nnx.merge(definition, blocks)


def streams(config: ModelConfig, blocks: Any, x_BTD: jax.Array) -> jax.Array:
  """The residual stream before every block and after the last, (L + 1, B, T, D).

  Args:
    config: the switches.
    blocks: params['blocks'] of `model.init`.
    x_BTD: what enters the first block.
  """

  def step(x_BTD, params):
    y_BTD, _ = layer(config, params)(x_BTD, NO_TAPS)
    return y_BTD, y_BTD

  return jnp.concatenate([x_BTD[None], jax.lax.scan(step, x_BTD, blocks)[1]])


def with_weights(params: Any, change: Callable[[str, Any], Any]) -> Any:
  """The parameters (or their shapes), each replaced by change(path, value), as at `attention/query/kernel`."""
  return jax.tree.map_with_path(lambda path, leaf: change('/'.join(key.key for key in path), leaf), params)
