"""The pure functions of training: taking a step, scoring a batch."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import model
from model import Constrain, unconstrained
from training import metric_names as names
from training.config import Config
from training.optimizer import make_average, make_optimizer, make_schedule
from training.parameter_tree import is_stacked
from training.state import AveragedState, State

# inputs_BT and targets_BT (int32), weights_BT (float32; 0: not scored), with data.mask_documents documents_BT (int32)
DeviceBatch = dict[str, jax.Array]
MOST_SKIPPED = 10  # updates in a row, with on_nonfinite=skip; then the run has diverged


def weighted_loss(
  config: Config,
  params,
  batch: DeviceBatch,
  taps,
  dropout_key=None,
  scored=None,
  observe=False,
  constrain=unconstrained,
):
  """Mean cross-entropy in nats over the scored tokens of a batch.

  Args:
    config: the run's config.
    params: as returned by `model.init`.
    batch: tokens and weights.
    taps: the gradient taps, or None; see model/residual.py.
    dropout_key: None for no dropout.
    scored: the number of tokens to divide the summed nats by; None: the scored tokens of this batch. For a part of a
      batch, pass that of the whole batch: then losses, gradients and tap products of the parts add up to the whole's.
    observe: whether the blocks return all forward statistics, or only the size of the stream.
    constrain: sharding of the stream and of a layer's parameters; see model.apply.

  Returns:
    The loss, and (number of scored tokens, forward statistics).
  """
  losses, aux = _losses(config, params, batch, taps, dropout_key, scored, observe, constrain)
  return losses[names.TRAIN_LOSS], aux


def objective(config: Config, params, batch: DeviceBatch):
  """The loss that training minimises on a batch, without dropout: the cross-entropy plus, with `z_loss`, the z-loss."""
  return _total(_losses(config, params, batch, None)[0])


def _losses(config: Config, params, batch, taps, key=None, scored=None, observe=False, constrain=unconstrained):
  """The terms of the training loss by name, means over the scored tokens; otherwise as `weighted_loss`."""
  logits_BTV, stats = model.apply(
    config.model, params, batch['inputs_BT'], taps, key, observe, constrain, batch.get('documents_BT')
  )
  nats_BT = optax.softmax_cross_entropy_with_integer_labels(logits_BTV, batch['targets_BT'])
  scored_here = jnp.sum(batch['weights_BT'])

  def mean(x_BT):
    return jnp.sum(x_BT * batch['weights_BT']) / jnp.maximum(scored_here if scored is None else scored, 1)

  losses = {names.TRAIN_LOSS: mean(nats_BT)}
  if config.optimizer.z_loss:
    log_z_BT = jax.nn.logsumexp(logits_BTV, -1)
    losses[names.Z_LOSS] = config.optimizer.z_loss * mean(jnp.square(log_z_BT))
  return losses, (scored_here, stats)


def _total(losses: dict[str, jax.Array]) -> jax.Array:
  return functools.reduce(jnp.add, losses.values())


def loss_and_gradients(config: Config, params, batch: DeviceBatch, taps, dropout_key=None, constrain=unconstrained):
  """The losses of a batch, their gradients and the forward statistics; the batch is taken in `accumulate` parts.

  Returns:
    losses: {'train/loss': the cross-entropy} and with `z_loss` also 'train/z_loss', scaled as it is added.
    gradient: of the sum of the losses, with respect to the parameters.
    stream_gradient: the products measured at the taps, times n, the number of scored tokens: their square root is
      sqrt(n sum_t |g_t|^2), which does not depend on the size of the batch.
    stats: the forward statistics.
  """
  observe = config.inspect.level == 'full'
  scored = jnp.sum(batch['weights_BT'])

  def part(batch, key):
    def loss_of(params, taps):
      losses, (_, stats) = _losses(config, params, batch, taps, key, scored, observe, constrain)
      return _total(losses), (losses, stats)

    (_, (losses, stats)), gradients = jax.value_and_grad(loss_of, (0, 1), has_aux=True)(params, taps)
    return (losses, gradients), stats

  if config.optimizer.accumulate == 1:
    (losses, (gradient, tap_gradient)), stats = part(batch, dropout_key)
  else:
    (losses, (gradient, tap_gradient)), stats = _accumulate(part, batch, dropout_key, config.optimizer.accumulate)
  return losses, gradient, jax.tree.map(lambda tap: scored * tap, tap_gradient), stats


def _accumulate(part, batch: DeviceBatch, dropout_key, count: int):
  """Runs `part` on `count` equal parts of a batch: sums losses and gradients, combines the forward statistics."""
  # Part k has the rows k, k + count, ...: where the rows are on several devices, each device has some of every part.
  parts = jax.tree.map(lambda rows: jnp.moveaxis(rows.reshape(-1, count, *rows.shape[1:]), 1, 0), batch)
  keys = None if dropout_key is None else jax.random.split(dropout_key, count)

  def add(total, inputs):
    result, stats = part(*inputs)
    return jax.tree.map(jnp.add, total, result), stats

  shapes, _ = jax.eval_shape(part, *jax.tree.map(lambda rows: rows[0], (parts, keys)))
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
  total, stats = jax.lax.scan(add, zeros, (parts, keys))
  combine = {'mean': jnp.mean, 'max': jnp.max}
  return total, {kind: jax.tree.map(lambda x, f=f: f(x, 0), stats[kind]) for kind, f in combine.items()}


def make_train_step(
  config: Config, constrain: Constrain = unconstrained
) -> Callable[[State, DeviceBatch], tuple[State, dict[str, Any]]]:
  """A step: (state, batch) -> (state, metrics). Pure; jit it with the state donated; for `constrain` see model.apply.

  A step whose loss, gradient or update is not finite keeps the old parameters and optimizer state, and is counted.
  Once the run has diverged (see `has_diverged`), further steps change no parameter.

  The metrics are device arrays:

    scalars          the losses (see `loss_and_gradients`), the learning rate, the global norms of the gradient (before
                     and after clipping), the update and the parameters, the share of steps so far that were clipped,
                     and nonfinite_in_a_row
    With config.inspect.level `norms` or `full` also
    stream_gradient  the three products at each tap times the scored tokens; by position with `full`
    stats            the forward statistics of model/forward_statistics.py; all of them with `full`
    parameter_norms  the trees `grad_norm`, `update_norm` and `param_norm`, like the parameters with one norm per layer;
                     computed at logged steps and where a run diverges, zero at other steps
  """
  optimizer = make_optimizer(config.optimizer, config.run.steps, config.model)
  schedule = make_schedule(config.optimizer, config.run.steps)
  average = make_average(config.optimizer)
  level, clip = config.inspect.level, config.optimizer.clip

  def train_step(state: State, batch: DeviceBatch):
    key = jax.random.fold_in(jax.random.key(state.init_seed), state.step) if config.model.stochastic else None
    positions = config.data.sequence_length if level == 'full' else None
    taps = None if level == 'off' else model.zero_taps(config.model, positions)
    losses, gradient, stream_gradient, stats = loss_and_gradients(config, state.params, batch, taps, key, constrain)
    norm = optax.tree.norm(gradient)
    updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
    update_norm = optax.tree.norm(updates)
    finite = jnp.isfinite(_total(losses)) & jnp.isfinite(norm) & jnp.isfinite(update_norm)
    applied = finite & ~has_diverged(config, state.nonfinite_in_a_row)
    params = optax.apply_updates(state.params, updates)
    update_count = state.optimizer[-1].count
    new_state = dataclasses.replace(
      state,
      step=state.step + 1,
      params=_where(applied, params, state.params),
      optimizer=_where(applied, optimizer_state, state.optimizer),
      nonfinite_in_a_row=jnp.where(applied, 0, state.nonfinite_in_a_row + 1),
      clipped=state.clipped + (applied & (norm > clip) if clip else 0),
    )
    if isinstance(new_state, AveragedState):
      averaged = average(new_state.ema, params, update_count)
      new_state = dataclasses.replace(new_state, ema=_where(applied, averaged, new_state.ema))
    metrics = {
      'scalars': {
        names.NONFINITE_IN_A_ROW: new_state.nonfinite_in_a_row,
        **losses,
        names.LEARNING_RATE: schedule(update_count),
        names.GLOBAL_GRAD_NORM: norm,
        names.CLIPPED_GRAD_NORM: jnp.minimum(norm, clip) if clip else norm,
        names.CLIPPED_STEPS: new_state.clipped / new_state.step,
        names.GLOBAL_UPDATE_NORM: update_norm,
        names.GLOBAL_PARAM_NORM: optax.tree.norm(state.params),
      }
    }
    if level != 'off':
      logged = is_logged(config, state.step + 1) | has_diverged(config, new_state.nonfinite_in_a_row)
      trees = {names.GRAD_NORM: gradient, names.UPDATE_NORM: updates, names.PARAM_NORM: state.params}
      shapes = jax.eval_shape(_norms_per_layer, trees)
      zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
      metrics |= {
        'stream_gradient': stream_gradient,
        'stats': stats,
        'parameter_norms': jax.lax.cond(logged, _norms_per_layer, lambda _: zeros, trees),
      }
    return new_state, metrics

  return train_step


def make_evaluation_step(
  config: Config, constrain: Constrain = unconstrained
) -> Callable[[Any, DeviceBatch], tuple[jax.Array, jax.Array]]:
  """(params, batch) -> (summed nats, number of scored tokens); no dropout."""

  def evaluation_step(params, batch: DeviceBatch):
    loss, (scored, _) = weighted_loss(config, params, batch, None, constrain=constrain)
    return loss * scored, scored

  return evaluation_step


def has_diverged(config: Config, nonfinite_in_a_row):
  """Whether this number of non-finite steps in a row ends the run: 1, or with on_nonfinite=skip MOST_SKIPPED."""
  return nonfinite_in_a_row >= (1 if config.run.on_nonfinite == 'stop' else MOST_SKIPPED)


def is_logged(config: Config, step):
  """Whether the metrics of this step (counted from 1) are logged: the first, the last, every log_interval-th."""
  return (step % config.run.log_interval == 0) | (step == 1) | (step == config.run.steps)


def norm_per_layer(tree):
  """The Euclidean norm of every leaf in float32; for the leaves of the blocks, of each layer."""

  def norm(path, leaf):
    axes = tuple(range(int(is_stacked(path)), leaf.ndim))
    return jnp.sqrt(jnp.sum(jnp.square(leaf.astype(jnp.float32)), axes))

  return jax.tree.map_with_path(norm, tree)


def _norms_per_layer(trees):
  return {name: norm_per_layer(tree) for name, tree in trees.items()}


def _where(condition, chosen, otherwise):
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), chosen, otherwise)
