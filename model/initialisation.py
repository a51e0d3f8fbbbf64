"""Initial values: one table from a parameter's path to its distribution; all others have the values of their class.

A parameter's values depend only on (key, path, layer) and its shape within one layer, and not on the order in which
modules are constructed. A parameter therefore has the same initial values in every variant and at every depth.
"""

import functools
import re
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from model.config import ModelConfig
from model.distributions import Constant, Distribution, Normal, Orthogonal, draw_one

BRANCH_OUTPUTS = ('attention/output', 'feed_forward/down')  # the last kernel of each branch


def distribution(config: ModelConfig, path: str, shape: tuple[int, ...]) -> Distribution | None:
  """The initial distribution of a parameter; None for one that has the values of the constructor of its class.

  Args:
    config: the model config.
    path: the path in the parameter tree, such as `blocks/attention/query/kernel`.
    shape: the shape within one layer.
  """
  table: list[tuple[str, Callable[[], Distribution]]] = [
    (r'.*/gain', lambda: Constant(1.0)),
    (r'.*/bias', lambda: Constant(0.0)),
    (r'embedding/token', lambda: Normal(token_deviation(config))),
    (r'embedding/position', lambda: Normal(0.01 if config.init == 'gpt2' else 0.1)),
    (r'head/kernel', lambda: Normal(head_deviation(config) * depth_scale(config, path))),
    (r'blocks/.*/kernel', lambda: stated_kernel(config, path) or drawn_kernel(config, path, shape)),
  ]
  for pattern, make in table:
    if re.fullmatch(pattern, path):
      return make()
  return None


def token_deviation(config: ModelConfig) -> float:
  """Standard deviation of the token embedding."""
  return 0.02 if config.init == 'gpt2' else 1.0


def head_deviation(config: ModelConfig) -> float:
  """Standard deviation of the head's kernel; a tied head scales its product to match it (model/embedding.py)."""
  return 0.02 if config.init == 'gpt2' else config.d_model**-0.5


def kernel_deviation(config: ModelConfig, shape: tuple[int, ...]) -> float:
  """Standard deviation of a kernel of shape (fan_in, fan_out) under the scheme `config.init`."""
  fan_in, fan_out = shape
  return {'fan_in': fan_in**-0.5, 'xavier': (2 / (fan_in + fan_out)) ** 0.5, 'gpt2': 0.02}[config.init]


def drawn_kernel(config: ModelConfig, path: str, shape: tuple[int, ...]) -> Normal:
  """The distribution of a kernel under the scheme `config.init`."""
  return Normal(kernel_deviation(config, shape) * depth_scale(config, path))


def stated_kernel(config: ModelConfig, path: str) -> Distribution | None:
  """The distribution of a kernel that the connection states; None if it follows the scheme `config.init`."""
  return config.connection_class.initial_kernel(config, _kernel_name(path))


def depth_scale(config: ModelConfig, path: str) -> float:
  """The factor on a kernel's standard deviation that depends on depth, as the connection has it."""
  return config.connection_class.depth_scale(config, _kernel_name(path), BRANCH_OUTPUTS)


def _kernel_name(path: str) -> str:
  return path.removeprefix('blocks/').removesuffix('/kernel')


def initial_values(config: ModelConfig, shapes, key: jax.Array, constructed: Callable[[], Any]):
  """Draws every parameter.

  Args:
    config: the model config, which determines the distributions.
    shapes: the parameter tree as `jax.ShapeDtypeStruct`s; those under `blocks` have a leading layer axis.
    key: the `jax.random` key of the initial values.
    constructed: returns the same tree with the values that the constructors give; called only if some have no row in
      the table.

  Returns:
    The tree of `shapes`, filled; float32.
  """

  def draw(path, leaf):
    name = '/'.join(part.key for part in path)
    stacked = name.startswith('blocks/')
    shape = leaf.shape[stacked:]
    source = distribution(config, name, shape)
    if source is None:
      return None
    of = source.transpose_of if isinstance(source, Orthogonal) else ''
    path_key = jax.random.fold_in(key, zlib.crc32((of or name).encode()))
    if not stacked:
      return draw_one(source, shape, jax.random.fold_in(path_key, 0))
    keys = jax.vmap(functools.partial(jax.random.fold_in, path_key))(jnp.arange(leaf.shape[0]))
    return jax.lax.map(functools.partial(draw_one, source, shape), keys)  # as vmap, compiled in half the time

  drawn = jax.tree.map_with_path(draw, shapes)
  if len(jax.tree.leaves(drawn)) == len(jax.tree.leaves(shapes)):
    return drawn
  return jax.tree.map(lambda value, other: other if value is None else value, drawn, constructed(), is_leaf=_is_none)


def _is_none(value: Any) -> bool:
  return value is None
