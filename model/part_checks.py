"""Checks parts that an experiment file registered, by their shapes and dtypes, before anything is compiled."""

import contextlib
import functools
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from model.activations import ACTIVATIONS
from model.config import ModelConfig
from model.connections import Site
from model.connections.base import Sublayer
from model.field_checks import ConfigError
from model.norm import NORMS, make_norm
from model.transformer import init, param_shapes

BATCH, POSITIONS = 2, 3
LONGEST = 300  # characters of the message of an error in the user's code


@functools.cache
def check_parts(config: ModelConfig) -> None:
  """Checks a model with parts that are not built in; nothing is computed on a device.

  Raises:
    ConfigError: if the constructor, `open`, `read`, `term`, `write`, `run`, `stream`, `between` or `close` of its
      connection raises an error, returns a wrong shape, dtype or structure, or cannot be differentiated, or a
      parameter is not float32; in one line with the file and, if it can be known, the line.
  """
  if not config.idea:
    return
  file = Path(config.idea_file)
  x_BTD = jax.ShapeDtypeStruct((BATCH, min(POSITIONS, config.num_positions), config.d_model), jnp.float32)
  if NORMS.origin(config.norm) == file:
    where = f'{file}: norm {config.norm}'
    with _explained(config, where):
      jax.eval_shape(jax.grad(functools.partial(_check_norm, config, where)), x_BTD)
  if ACTIVATIONS.origin(config.feed_forward) == file:
    where = f'{file}: activation {config.feed_forward}'
    x_BTF = jax.ShapeDtypeStruct((*x_BTD.shape[:2], config.ff_width), config.dtype)
    with _explained(config, where):
      jax.eval_shape(jax.grad(functools.partial(_check_activation, config, where)), x_BTF)
  where = f'{file}: class {config.connection_class.__name__}'
  with _explained(config, where):
    index = jax.ShapeDtypeStruct((), jnp.int32)
    jax.eval_shape(jax.grad(functools.partial(_check_connection, config, where)), x_BTD, index, _key())
    for path, leaf in jax.tree.leaves_with_path(param_shapes(config)):
      if leaf.dtype != jnp.float32:
        names = '/'.join(str(key.key) for key in path)
        raise ConfigError(f'{file}: the parameter {names} is {leaf.dtype}, but all parameters must be float32')
    jax.eval_shape(functools.partial(init, config), _key())


def _check_norm(config: ModelConfig, where: str, x_BTD: jax.Array) -> jax.Array:
  y_BTD = make_norm(config.norm, config.d_model, config.use_bias)(x_BTD)
  _check(y_BTD, x_BTD, where)
  return jnp.sum(y_BTD)


def _check_activation(config: ModelConfig, where: str, x_BTF: jax.Array) -> jax.Array:
  y_BTF = ACTIVATIONS[config.feed_forward].function(x_BTF)
  _check(y_BTF, x_BTF, where)
  return jnp.sum(y_BTF.astype(jnp.float32))


def _key() -> jax.ShapeDtypeStruct:
  """The shape of a random key; creating one would initialise a device."""
  return jax.eval_shape(jax.random.key, jax.ShapeDtypeStruct((), jnp.uint32))


def _check_connection(config: ModelConfig, where: str, x_BTD: jax.Array, index: jax.Array, key: jax.Array) -> jax.Array:
  """Passes a state through one block of each group, and checks what each method returns."""
  kind = config.connection_class
  ends = kind.ends(config)
  state = ends.open(x_BTD)
  _check_state(state, x_BTD, f'{where}: {kind.ends.__name__}.open')
  blocks = 0
  for length in kind.groups(config):
    if blocks:
      state = ends.between(state, blocks)
      _check_state(state, x_BTD, f'{where}: {kind.ends.__name__}.between')
    blocks += length
    fixed = kind.fixed(config, state)
    for sublayer in get_args(Sublayer):
      site = Site(index, 2 * config.num_layers, key if kind.stochastic(config) else None, fixed)
      connection = kind(config, sublayer, site)
      _check(connection.read(state, site), x_BTD, f'{where}: read')
      term_BTD = connection.term(x_BTD, site)
      _check(term_BTD, x_BTD, f'{where}: term')
      written = connection.write(state, term_BTD, site)
      _check_same(written, state, f'{where}: write')
      _check(connection.stream(written), x_BTD, f'{where}: stream')
      term_BTD, written = connection.run(state, state, _branch(config, sublayer, where), site)
      _check(term_BTD, x_BTD, f'{where}: run')
      _check_same(written, state, f'{where}: run')
  y_BTD = ends.close(state)
  _check(y_BTD, x_BTD, f'{where}: {kind.ends.__name__}.close')
  return jnp.sum(y_BTD)


def _branch(config: ModelConfig, sublayer: str, where: str) -> Any:
  """Stands for a branch: its output is its input; checks the functions on what is within the branch."""

  def attention(x_BTD, values=None, mix=None):
    axes = '(batch, positions, heads, width)'
    v_BSHK = jnp.zeros((*x_BTD.shape[:2], config.kv_heads, config.key_width), config.dtype)
    out_BTHK = jnp.zeros((*x_BTD.shape[:2], config.num_heads, config.key_width), config.dtype)
    if values is not None:
      _check(values(v_BSHK), v_BSHK, f'{where}: the function on the values', axes)
    check_mix(mix, out_BTHK, v_BSHK, axes)
    return x_BTD

  def feed_forward(x_BTD, mix=None):
    h_BTF = jnp.zeros((*x_BTD.shape[:2], config.ff_width), config.dtype)
    check_mix(mix, h_BTF, h_BTF, '(batch, positions, width)')
    return x_BTD

  def check_mix(mix, computed, linear, axes):
    if mix is None:
      return
    if not isinstance(mix, Partial):
      raise ConfigError(f'{where}: the argument mix of a branch must be a jax.tree_util.Partial')
    _check(mix(computed, linear), computed, f'{where}: the function mix', axes)

  return attention if sublayer == 'attention' else feed_forward


def _check(value: Any, like: jax.Array, method: str, axes: str = '(batch, positions, width)') -> None:
  if _describe(value) != _describe(like):
    raise ConfigError(f'{method} must return {_describe(like)}, as {axes}, not {_describe(value)}')


def _check_state(state: Any, x_BTD: jax.Array, method: str) -> None:
  leaves = jax.tree.leaves(state)
  for leaf in leaves:
    if not _is_array(leaf) or leaf.dtype != jnp.float32 or leaf.shape[:2] != x_BTD.shape[:2]:
      raise ConfigError(
        f'{method} must return arrays of float32 whose shapes begin with {x_BTD.shape[:2]}, the batch and the '
        f'positions, not {_describe(leaf)}'
      )
  if not leaves:
    raise ConfigError(f'{method} must return at least one array')


def _check_same(written: Any, state: Any, method: str) -> None:
  """Raises ConfigError if a new state has not the structure, shapes and dtypes of the state before it."""
  before: Any = jax.tree.structure(state)
  if before != jax.tree.structure(written):
    raise ConfigError(
      f'{method} must return a state like the one it is given, {_describe_tree(state)}, not {_describe_tree(written)}'
    )
  for new, old in zip(jax.tree.leaves(written), jax.tree.leaves(state), strict=True):
    if _describe(new) != _describe(old):
      raise ConfigError(
        f'{method} must return a state like the one it is given: {_describe(old)}, not {_describe(new)}'
      )


def _is_array(value: Any) -> bool:
  return isinstance(value, jax.Array)


def _describe(value: Any) -> str:
  return (
    f'{value.dtype}{list(value.shape)}' if hasattr(value, 'shape') and hasattr(value, 'dtype') else type(value).__name__
  )


def _describe_tree(state: Any) -> str:
  return str(jax.tree.map(_describe, state)).replace("'", '')[:LONGEST]


@contextlib.contextmanager
def _explained(config: ModelConfig, where: str) -> Iterator[None]:
  """Any error, also of the user's code, becomes one line with the file and the line in it."""
  try:
    yield
  except ConfigError:
    raise
  except Exception as error:  # the user's code may raise anything
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == config.idea_file]
    at = f'{config.idea_file}, line {lines[-1]}{where.removeprefix(config.idea_file)}' if lines else where
    raise ConfigError(f'{at}: {type(error).__name__}: {" ".join(str(error).split())[:LONGEST]}') from error
