"""The compiled programs of a run: one compilation each, shared by runs that differ in their seeds alone."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from training.cache import compile_with_cache
from training.config import Config
from training.sources import Batch
from training.step import State, init_state, make_evaluation_step, make_train_step

EVALUATION_TOKENS = 2048  # positions in a batch of evaluation: large enough to be quick, small enough for the cache


class Programs(NamedTuple):
  """What runs on the device; see training/step.py."""

  init: Callable[[np.uint32], State]
  train_step: Callable[[State, Batch], tuple[State, dict[str, Any]]]
  evaluation_step: Callable[[Any, Batch], tuple[jax.Array, jax.Array]]


def programs_for(config: Config) -> Programs:
  """The programs of a config, compiled if this process has not done so yet for other seeds."""
  return _compile(config.replace({'run.init_seed': 0, 'data.seed': 0}))


def evaluation_size(config: Config) -> int:
  """Sequences in a batch of evaluation."""
  return max(1, EVALUATION_TOKENS // config.data.sequence_length)


@functools.lru_cache(maxsize=8)
def _compile(config: Config) -> Programs:
  def init(init_seed):
    return init_state(config, init_seed)

  seed = jax.ShapeDtypeStruct((), np.uint32)
  state = jax.eval_shape(init, seed)
  length = config.data.sequence_length
  train_batch = _batch_shapes(config.run.batch_size, length)
  evaluation_batch = _batch_shapes(evaluation_size(config), length)
  return Programs(
    compile_with_cache(jax.jit(init), seed),
    compile_with_cache(jax.jit(make_train_step(config), donate_argnums=0), state, train_batch),
    compile_with_cache(jax.jit(make_evaluation_step(config)), state.params, evaluation_batch),
  )


def _batch_shapes(batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
  shape = (batch_size, length)
  dtypes = {'inputs_BT': np.int32, 'targets_BT': np.int32, 'weights_BT': np.float32}
  return {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in dtypes.items()}
