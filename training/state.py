"""The state of training, which steps update and checkpoints store, and its initial value."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

import model
from training.config import Config
from training.optimizer import make_optimizer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """Everything that training carries from step to step and a checkpoint stores.

  Attributes:
    step: number of batches taken, int32; also the position in the data.
    params: the parameters of the model.
    optimizer: the state of the optax optimizer.
    init_seed: seed of the initial values and of dropout, uint32; part of the state, so that one compiled step serves
      every seed.
    nonfinite_in_a_row: updates dropped since the last one that was applied, int32.
    clipped: number of steps so far whose gradient was clipped, int32.
  """

  step: jax.Array
  params: Any
  optimizer: Any
  init_seed: jax.Array
  nonfinite_in_a_row: jax.Array
  clipped: jax.Array

  @property
  def evaluated_params(self) -> Any:
    """The parameters to evaluate."""
    return self.params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AveragedState(State):
  """The state with optimizer.ema. A separate type, so that other states and their checkpoints have no such field.

  Attributes:
    ema: the moving average of the parameters; see `training.optimizer.make_average`.
  """

  ema: Any

  @property
  def evaluated_params(self) -> Any:
    """The parameters to evaluate: the moving average."""
    return self.ema


def init_state(config: Config, init_seed: jax.Array) -> State:
  """The state before the first step; a pure function (jit it with `config` static)."""
  params = model.init(config.model, jax.random.key(init_seed))
  optimizer = make_optimizer(config.optimizer, config.run.steps, config.model)
  state = State(
    step=jnp.zeros((), jnp.int32),
    params=params,
    optimizer=optimizer.init(params),
    init_seed=jnp.asarray(init_seed, jnp.uint32),
    nonfinite_in_a_row=jnp.zeros((), jnp.int32),
    clipped=jnp.zeros((), jnp.int32),
  )
  return AveragedState(**vars(state), ema=params) if config.optimizer.ema else state


def with_params(state: State, params) -> State:
  """The state before the first step with other parameters; a moving average starts from them too."""
  state = dataclasses.replace(state, params=params)
  return dataclasses.replace(state, ema=jax.tree.map(jnp.copy, params)) if isinstance(state, AveragedState) else state
