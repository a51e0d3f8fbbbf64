"""The compiled programs of a run, each compiled once for all runs that differ only in their seeds."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from model import Constrain, unconstrained
from training.cache import compile_with_cache
from training.config import Config
from training.data.dataset import Batch
from training.identity import SEED_FIELDS
from training.mesh import by_row, by_rule, make_mesh, put_batch, replicated
from training.state import State, init_state
from training.step import make_evaluation_step, make_train_step

EVALUATION_TOKENS = 2048  # in an evaluation batch: large enough to be fast, small enough for the CPU's cache


class Programs(NamedTuple):
  """The compiled functions of training/step.py, and the mesh they run on; they take this process's rows of a batch."""

  mesh: Mesh
  init: Callable[[np.uint32], State]
  train_step: Callable[[State, Batch], tuple[State, dict[str, Any]]]
  evaluation_step: Callable[[Any, Batch], tuple[jax.Array, jax.Array]]


def programs_for(config: Config) -> Programs:
  """The programs of a config, compiled unless this process has already compiled them for any seed.

  Raises:
    ConfigError: if the mesh does not match the devices, or the batch cannot be split evenly over them.
  """
  return _compile(config.replace(dict.fromkeys(SEED_FIELDS, 0)))


def evaluation_size(config: Config, devices: int = 1) -> int:
  """Sequences in an evaluation batch, the same number on each device."""
  return devices * max(1, EVALUATION_TOKENS // (config.data.sequence_length * devices))


def train_program(config: Config, mesh: Mesh):
  """The jitted training step on a mesh, and the shapes of its arguments."""
  state = _state_shapes(config)
  state_sharding, rows, copied = by_rule(mesh, state), by_row(mesh), replicated(mesh)
  step = make_train_step(config, _constrain(mesh))
  jitted = jax.jit(step, in_shardings=(state_sharding, rows), out_shardings=(state_sharding, copied), donate_argnums=0)
  return jitted, state, _batch_shapes(config, config.run.batch_size)


def evaluation_program(config: Config, mesh: Mesh):
  """The jitted evaluation step on a mesh, and the shapes of its arguments."""
  params = _state_shapes(config).params
  step = make_evaluation_step(config, _constrain(mesh))
  jitted = jax.jit(step, in_shardings=(by_rule(mesh, params), by_row(mesh)), out_shardings=replicated(mesh))
  return jitted, params, _batch_shapes(config, evaluation_size(config, mesh.size))


@functools.lru_cache(maxsize=8)
def _compile(config: Config) -> Programs:
  mesh = make_mesh(config)

  def init(init_seed):
    return init_state(config, init_seed)

  state_sharding = by_rule(mesh, _state_shapes(config))
  return Programs(
    mesh,
    compile_with_cache(jax.jit(init, out_shardings=state_sharding), jax.ShapeDtypeStruct((), np.uint32)),
    on_own_rows(mesh, compile_with_cache(*train_program(config, mesh))),
    on_own_rows(mesh, compile_with_cache(*evaluation_program(config, mesh))),
  )


def _state_shapes(config: Config) -> State:
  return jax.eval_shape(functools.partial(init_state, config), jax.ShapeDtypeStruct((), np.uint32))


def _constrain(mesh: Mesh) -> Constrain:
  """Shards the stream by row and gathers each layer's parameters, on more than one device; see model.apply."""
  if mesh.size == 1:
    return unconstrained

  def constrain(x_BTD, layer):
    return jax.lax.with_sharding_constraint((x_BTD, layer), (by_row(mesh), replicated(mesh)))

  return constrain


def on_own_rows(mesh: Mesh, program: Callable) -> Callable:
  """Wraps a compiled program so that it takes this process's rows of the batch, its second argument.

  The devices of a CPU share its threads: two programs in flight may each occupy the threads that the other's all-reduce
  waits for, until XLA aborts after 40 s. So on a CPU the programs run one at a time.
  """
  if mesh.size == 1:
    return program
  alone, one_by_one = jax.process_count() == 1, jax.default_backend() == 'cpu'

  def run(state, batch):
    result = program(state, batch if alone else put_batch(mesh, batch))
    return jax.block_until_ready(result) if one_by_one else result

  return run


def _batch_shapes(config: Config, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
  shape = (batch_size, config.data.sequence_length)
  dtypes = {'inputs_BT': np.int32, 'targets_BT': np.int32, 'weights_BT': np.float32}
  if config.data.mask_documents:
    dtypes['documents_BT'] = np.int32
  return {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in dtypes.items()}
