"""Initial values, as one table from a parameter's path to its distribution.

A parameter's numbers depend on (key, path, layer) and its per-layer shape alone, never on the order in which modules
are made: the same parameter starts the same in every variant and at every depth.
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
  """The same value everywhere."""

  value: float


BRANCH_OUTPUTS = r'blocks/(attention/output|feed_forward/down)/kernel'
DEEPNORM_SCALED = r'blocks/(attention/(value|output)|feed_forward/(gate|up|down))/kernel'


def distribution(config: ModelConfig, path: str, shape: tuple[int, ...]) -> Normal | Constant:
  """The initial distribution of the parameter at `path`; `shape` is that of one layer."""
  table: list[tuple[str, Callable[[], Normal | Constant]]] = [
    (r'.*/gain', lambda: Constant(1.0)),
    (r'.*/bias', lambda: Constant(0.0)),
    (r'blocks/\w+_scale', lambda: Constant(0.0)),  # ReZero starts as the identity
    (r'embedding/token', lambda: Normal(token_deviation(config))),
    (r'embedding/position', lambda: Normal(0.01 if config.init == 'gpt2' else 0.1)),
    (r'head/kernel', lambda: Normal(head_deviation(config))),
    (r'blocks/.*/kernel', lambda: Normal(kernel_deviation(config, shape) * depth_scale(config, path))),
  ]
  for pattern, make in table:
    if re.fullmatch(pattern, path):
      return make()
  raise KeyError(f'initialisation.py has no row for {path}')


def token_deviation(config: ModelConfig) -> float:
  """Standard deviation of the embedding."""
  return 0.02 if config.init == 'gpt2' else 1.0


def head_deviation(config: ModelConfig) -> float:
  """Standard deviation of the head, also of a tied one (by the scale of its product, see model/transformer.py)."""
  return 0.02 if config.init == 'gpt2' else config.d_model**-0.5


def kernel_deviation(config: ModelConfig, shape: tuple[int, ...]) -> float:
  """Standard deviation of a kernel of shape (fan_in, fan_out), by the scheme `config.init`."""
  fan_in, fan_out = shape
  return {'fan_in': fan_in**-0.5, 'xavier': (2 / (fan_in + fan_out)) ** 0.5, 'gpt2': 0.02}[config.init]


def depth_scale(config: ModelConfig, path: str) -> float:
  """What a scheme multiplies a kernel's draw by: 1/sqrt(2 L) on the last kernel of each branch (Radford et al. 2019).

  DeepNorm has its own, (8 L)^(-1/4) on the values, attention outputs and feed-forward kernels (Wang et al. 2022).
  """
  if config.norm_placement == 'deepnorm':
    return (8 * config.num_layers) ** -0.25 if re.fullmatch(DEEPNORM_SCALED, path) else 1.0
  if config.init_depth_scale and re.fullmatch(BRANCH_OUTPUTS, path):
    return (2 * config.num_layers) ** -0.5
  return 1.0


def initial_values(config: ModelConfig, shapes, key: jax.Array):
  """Draws every parameter.

  Args:
    config: decides the distributions.
    shapes: the parameter tree as `jax.ShapeDtypeStruct`s; those under `blocks` have a leading layer axis.
    key: of the run's initial values.

  Returns:
    The tree of `shapes`, filled.
  """

  def draw(path, leaf):
    name = '/'.join(part.key for part in path)
    path_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    if not name.startswith('blocks/'):
      return draw_one(distribution(config, name, leaf.shape), leaf.shape, jax.random.fold_in(path_key, 0))
    shape = leaf.shape[1:]
    keys = jax.vmap(functools.partial(jax.random.fold_in, path_key))(jnp.arange(leaf.shape[0]))
    draw_layer = functools.partial(draw_one, distribution(config, name, shape), shape)
    return jax.lax.map(draw_layer, keys)  # the bits of vmap, compiled in half the time

  return jax.tree.map_with_path(draw, shapes)


def draw_one(source: Normal | Constant, shape: tuple[int, ...], key: jax.Array) -> jax.Array:
  """One layer's values."""
  if isinstance(source, Constant):
    return jnp.full(shape, source.value, jnp.float32)
  # The barrier keeps a compiler from merging the scale with a factor inside `normal`: jitted or not, the same bits.
  return source.standard_deviation * jax.lax.optimization_barrier(jax.random.normal(key, shape, jnp.float32))
