"""The three pure functions of training: make a state, take a step, score a batch."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import model
from training.config import Config
from training.optimizer import make_optimizer, make_schedule

Batch = dict[str, jax.Array]  # inputs_BT and targets_BT (int32), weights_BT (float32; 0: not scored)
MOST_SKIPPED = 10  # updates in a row, with on_nonfinite=skip


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """All that training carries from step to step, and all that a checkpoint holds.

  Attributes:
    step: batches seen, int32; also the position in the data.
    params: the model's parameters.
    optimizer: optax's state.
    init_seed: of the initial values and of dropout, uint32; here, so that one compiled step serves every seed.
    nonfinite_in_a_row: updates dropped since the last one that was applied, int32.
  """

  step: jax.Array
  params: Any
  optimizer: Any
  init_seed: jax.Array
  nonfinite_in_a_row: jax.Array


def init_state(config: Config, init_seed: jax.Array) -> State:
  """The state before the first step; a pure function (jit it with config static)."""
  params = model.init(config.model, jax.random.key(init_seed))
  optimizer = make_optimizer(config.optimizer, config.run.steps)
  return State(
    step=jnp.zeros((), jnp.int32),
    params=params,
    optimizer=optimizer.init(params),
    init_seed=jnp.asarray(init_seed, jnp.uint32),
    nonfinite_in_a_row=jnp.zeros((), jnp.int32),
  )


def weighted_loss(config: Config, params, batch: Batch, taps, dropout_key=None):
  """Mean cross-entropy in nats over the scored tokens of a batch.

  Returns:
    The loss, and (number of scored tokens, the stream's root mean squares).
  """
  logits_BTV, stream_rms = model.apply(config.model, params, batch['inputs_BT'], taps, dropout_key)
  nats_BT = optax.softmax_cross_entropy_with_integer_labels(logits_BTV, batch['targets_BT'])
  scored = jnp.sum(batch['weights_BT'])
  return jnp.sum(nats_BT * batch['weights_BT']) / jnp.maximum(scored, 1), (scored, stream_rms)


def make_train_step(config: Config) -> Callable[[State, Batch], tuple[State, dict[str, Any]]]:
  """A step: (state, batch) -> (state, metrics). Pure; jit it with the state donated.

  A step whose loss, gradient or update is not finite keeps the old parameters and optimizer state, and counts. Once
  there are so many in a row that the run has diverged, nothing moves any more, whoever goes on calling.

  The metrics are device arrays. `scalars`: the loss in nats, the learning rate, the global norms of the gradient
  (before and after clipping), the update and the parameters, and nonfinite_in_a_row. With config.inspect.level
  `norms` also `stream_gradient`, the taps' three products times the scored tokens n (so that the root is
  sqrt(n sum_t |g_t|^2), which does not depend on the batch); `stream_rms`; and `grad_norms`, a tree like the
  parameters with one norm for each layer, which is computed at logged steps and where a run diverges, zero elsewhere.
  """
  optimizer = make_optimizer(config.optimizer, config.run.steps)
  schedule = make_schedule(config.optimizer, config.run.steps)
  inspected = config.inspect.level != 'off'

  def train_step(state: State, batch: Batch):
    def loss_of(params, taps):
      key = jax.random.fold_in(jax.random.key(state.init_seed), state.step) if config.model.dropout else None
      return weighted_loss(config, params, batch, taps, key)

    taps = model.zero_taps(config.model)
    arguments = (0, 1) if inspected else 0
    (loss, (scored, stream_rms)), gradients = jax.value_and_grad(loss_of, arguments, has_aux=True)(state.params, taps)
    gradient, tap_gradient = gradients if inspected else (gradients, None)
    norm = optax.tree.norm(gradient)
    updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
    update_norm = optax.tree.norm(updates)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm) & jnp.isfinite(update_norm)
    applied = finite & ~has_diverged(config, state.nonfinite_in_a_row)
    params = optax.apply_updates(state.params, updates)
    new_state = State(
      step=state.step + 1,
      params=_where(applied, params, state.params),
      optimizer=_where(applied, optimizer_state, state.optimizer),
      init_seed=state.init_seed,
      nonfinite_in_a_row=jnp.where(applied, 0, state.nonfinite_in_a_row + 1),
    )
    metrics = {
      'scalars': {
        'nonfinite_in_a_row': new_state.nonfinite_in_a_row,
        'train/loss': loss,
        'learning_rate': schedule(state.optimizer[-1].count),
        'grad_norm/global': norm,
        'grad_norm/clipped': jnp.minimum(norm, config.optimizer.clip) if config.optimizer.clip else norm,
        'update_norm/global': update_norm,
        'param_norm/global': optax.tree.norm(state.params),
      }
    }
    if inspected:
      metrics['stream_gradient'] = jax.tree.map(lambda tap: scored * tap, tap_gradient)
      metrics['stream_rms'] = stream_rms
      shapes = jax.eval_shape(norm_by_layer, gradient)
      logged = is_logged(config, state.step + 1) | has_diverged(config, new_state.nonfinite_in_a_row)
      zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
      metrics['grad_norms'] = jax.lax.cond(logged, norm_by_layer, lambda _: zeros, gradient)
    return new_state, metrics

  return train_step


def make_evaluation_step(config: Config) -> Callable[[Any, Batch], tuple[jax.Array, jax.Array]]:
  """(params, batch) -> (summed nats, number of scored tokens); no dropout."""

  def evaluation_step(params, batch: Batch):
    loss, (scored, _) = weighted_loss(config, params, batch, None)
    return loss * scored, scored

  return evaluation_step


def has_diverged(config: Config, nonfinite_in_a_row):
  """Whether so many steps in a row whose loss or gradient is not finite end the run."""
  return nonfinite_in_a_row >= (1 if config.run.on_nonfinite == 'stop' else MOST_SKIPPED)


def is_logged(config: Config, step):
  """Whether the metrics of this step (counted from 1) are logged: the first, the last, and every log_interval-th."""
  return (step % config.run.log_interval == 0) | (step == 1) | (step == config.run.steps)


def norm_by_layer(tree):
  """The Euclidean norm of every leaf, one for each layer of those under `blocks`; float32."""

  def norm(path, leaf):
    axes = tuple(range(1 if path[0].key == 'blocks' else 0, leaf.ndim))
    return jnp.sqrt(jnp.sum(jnp.square(leaf.astype(jnp.float32)), axes))

  return jax.tree.map_with_path(norm, tree)


def _where(condition, chosen, otherwise):
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), chosen, otherwise)
