"""Initial values: one table from a parameter's path to its distribution.

A parameter's values depend only on (key, path, layer) and its shape within one layer, and not on the order in which
modules are constructed. A parameter therefore has the same initial values in every variant and at every depth.
"""

import functools
import re
import zlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from model.config import ModelConfig


class Normal(NamedTuple):
  """N(0, standard_deviation^2)."""

  standard_deviation: float


class Constant(NamedTuple):
  """Every element has the same value."""

  value: float


BRANCH_OUTPUTS = ('attention/output', 'feed_forward/down')  # the last kernel of each branch
DEEPNORM_SCALED = ('attention/value', 'feed_forward/gate', 'feed_forward/up', *BRANCH_OUTPUTS)


def distribution(config: ModelConfig, path: str, shape: tuple[int, ...]) -> Normal | Constant:
  """The initial distribution of a parameter.

  Args:
    config: the model config.
    path: the path in the parameter tree, such as `blocks/attention/query/kernel`.
    shape: the shape within one layer.

  Raises:
    KeyError: if the table has no row for the path.
  """
  table: list[tuple[str, Callable[[], Normal | Constant]]] = [
    (r'.*/gain', lambda: Constant(1.0)),
    (r'.*/bias', lambda: Constant(0.0)),
    (r'blocks/\w+_scale', lambda: Constant(0.0)),  # with ReZero, a block is initially the identity
    (r'embedding/token', lambda: Normal(token_deviation(config))),
    (r'embedding/position', lambda: Normal(0.01 if config.init == 'gpt2' else 0.1)),
    (r'head/kernel', lambda: Normal(head_deviation(config))),
    (r'blocks/.*/kernel', lambda: Normal(kernel_deviation(config, shape) * depth_scale(config, path))),
  ]
  for pattern, make in table:
    if re.fullmatch(pattern, path):
      return make()
  raise KeyError(f'model/initialisation.py has no row for {path}')


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


def depth_scale(config: ModelConfig, path: str) -> float:
  """The factor on a kernel's standard deviation that depends on depth.

  With `init_depth_scale`, it is 1/sqrt(2 L) for the output kernel of each branch (Radford et al. 2019). With DeepNorm,
  it is (8 L)^(-1/4) for the value, attention-output and feed-forward kernels (Wang et al. 2022).
  """
  name = path.removeprefix('blocks/').removesuffix('/kernel')
  if config.norm_placement == 'deepnorm':
    return (8 * config.num_layers) ** -0.25 if name in DEEPNORM_SCALED else 1.0
  return (2 * config.num_layers) ** -0.5 if config.init_depth_scale and name in BRANCH_OUTPUTS else 1.0


def initial_values(config: ModelConfig, shapes, key: jax.Array):
  """Draws every parameter.

  Args:
    config: the model config, which determines the distributions.
    shapes: the parameter tree as `jax.ShapeDtypeStruct`s; those under `blocks` have a leading layer axis.
    key: the `jax.random` key of the initial values.

  Returns:
    The tree of `shapes`, filled; float32.
  """

  def draw(path, leaf):
    name = '/'.join(part.key for part in path)
    path_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    if not name.startswith('blocks/'):
      return draw_one(distribution(config, name, leaf.shape), leaf.shape, jax.random.fold_in(path_key, 0))
    shape = leaf.shape[1:]
    keys = jax.vmap(functools.partial(jax.random.fold_in, path_key))(jnp.arange(leaf.shape[0]))
    draw_layer = functools.partial(draw_one, distribution(config, name, shape), shape)
    return jax.lax.map(draw_layer, keys)  # the same bits as vmap, compiled in half the time

  return jax.tree.map_with_path(draw, shapes)


def draw_one(source: Normal | Constant, shape: tuple[int, ...], key: jax.Array) -> jax.Array:
  """The initial values of one layer of a parameter: an array of `shape`, float32."""
  if isinstance(source, Constant):
    return jnp.full(shape, source.value, jnp.float32)
  # Without the barrier XLA merges the scale with a factor inside `normal`: jitted and eager bits would differ.
  return source.standard_deviation * jax.lax.optimization_barrier(jax.random.normal(key, shape, jnp.float32))
