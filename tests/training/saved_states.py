"""States to save, and how to compare restored ones."""

import jax
import jax.numpy as jnp
import numpy as np

from model.config import ModelConfig
from model.transformer import param_shapes
from training.config import Config
from training.optimizer import make_optimizer
from training.run_files.checkpoint import Checkpoints
from training.state import State

CONFIG = Config(model=ModelConfig(vocab_size=11, num_layers=2, d_model=8, num_heads=2, norm='layer', use_bias=True))


def state_of(config: Config = CONFIG, step: int = 1, seed: int = 0) -> State:
  """A state in which all numbers differ."""
  params = param_shapes(config.model)
  optimizer = jax.eval_shape(make_optimizer(config.optimizer, 10).init, params)
  integer = jax.ShapeDtypeStruct((), np.int32)
  shapes = State(integer, params, optimizer, jax.ShapeDtypeStruct((), np.uint32), integer, integer)
  rng = np.random.default_rng(seed)

  def draw(leaf):
    if leaf.dtype == np.float32:
      return jnp.asarray(rng.normal(size=leaf.shape), jnp.float32)
    return jnp.asarray(rng.integers(1, 2**31, leaf.shape), leaf.dtype)

  state = jax.tree.map(draw, shapes)
  return State(
    jnp.int32(step), state.params, state.optimizer, jnp.uint32(2**32 - 1), state.nonfinite_in_a_row, state.clipped
  )


def shapes_of(state: State) -> State:
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


ABOUT = {'run': {'model.num_layers': 2}, 'log': {'bytes': 3}}


def restored(checkpoints: Checkpoints, like: State) -> State:
  found = checkpoints.restore(like, lambda about: None)
  assert found is not None
  return found.state


def assert_same(one, other) -> None:
  assert jax.tree.structure(one) == jax.tree.structure(other)
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
