"""The three pure functions of training: make a state, take a step, score a batch."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import model
from model import Constrain, unconstrained
from training.config import Config
from training.optimizer import make_average, make_optimizer, make_schedule

# inputs_BT and targets_BT (int32), weights_BT (float32; 0: not scored), with data.mask_documents documents_BT (int32)
Batch = dict[str, jax.Array]
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
    clipped: steps so far whose gradient was clipped, int32.
  """

  step: jax.Array
  params: Any
  optimizer: Any
  init_seed: jax.Array
  nonfinite_in_a_row: jax.Array
  clipped: jax.Array

  @property
  def evaluated_params(self) -> Any:
    """The parameters that are scored."""
    return self.params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AveragedState(State):
  """With optimizer.ema. A type of its own: other states have nothing in its place, nor have their checkpoints.

  Attributes:
    ema: the moving average of the parameters; see `training.optimizer.make_average`.
  """

  ema: Any

  @property
  def evaluated_params(self) -> Any:
    """The parameters that are scored: their average."""
    return self.ema


def init_state(config: Config, init_seed: jax.Array) -> State:
  """The state before the first step; a pure function (jit it with config static)."""
  params = model.init(config.model, jax.random.key(init_seed))
  optimizer = make_optimizer(config.optimizer, config.run.steps)
  state = State(
    step=jnp.zeros((), jnp.int32),
    params=params,
    optimizer=optimizer.init(params),
    init_seed=jnp.asarray(init_seed, jnp.uint32),
    nonfinite_in_a_row=jnp.zeros((), jnp.int32),
    clipped=jnp.zeros((), jnp.int32),
  )
  return AveragedState(**vars(state), ema=params) if config.optimizer.ema else state


def starting_from(state: State, params) -> State:
  """A state before the first step, with other parameters."""
  state = dataclasses.replace(state, params=params)
  return dataclasses.replace(state, ema=jax.tree.map(jnp.copy, params)) if isinstance(state, AveragedState) else state


def weighted_loss(
  config: Config, params, batch: Batch, taps, dropout_key=None, scored=None, observe=False, constrain=unconstrained
):
  """Mean cross-entropy in nats over the scored tokens of a batch.

  Args:
    config: model.
    params: as `model.init` makes them.
    batch: tokens and weights.
    taps: of the gradient split, or None; see model/residual.py.
    dropout_key: None for no dropout.
    scored: what the summed nats are divided by; None: the scored tokens of the batch. For a part of a batch it is
      those of the whole, so that losses, gradients and the taps' products of the parts add up to those of the whole.
    observe: whether the blocks tell of more than the size of the stream.
    constrain: where the stream and a layer's parameters lie; see model.apply.

  Returns:
    The loss, and (number of scored tokens, what the blocks saw).
  """
  losses, aux = _losses(config, params, batch, taps, dropout_key, scored, observe, constrain)
  return losses['train/loss'], aux


def objective(config: Config, params, batch: Batch):
  """What training minimises on a batch, without dropout: the cross-entropy, and with `z_loss` that of Z."""
  return _total(_losses(config, params, batch, None)[0])


def _losses(config: Config, params, batch, taps, key=None, scored=None, observe=False, constrain=unconstrained):
  """The terms of the training objective by name, means over the scored tokens; the rest as `weighted_loss`."""
  logits_BTV, seen = model.apply(
    config.model, params, batch['inputs_BT'], taps, key, observe, constrain, batch.get('documents_BT')
  )
  nats_BT = optax.softmax_cross_entropy_with_integer_labels(logits_BTV, batch['targets_BT'])
  own = jnp.sum(batch['weights_BT'])

  def mean(x_BT):
    return jnp.sum(x_BT * batch['weights_BT']) / jnp.maximum(own if scored is None else scored, 1)

  losses = {'train/loss': mean(nats_BT)}
  if config.optimizer.z_loss:
    log_z_BT = jax.nn.logsumexp(logits_BTV, -1)
    losses['train/z_loss'] = config.optimizer.z_loss * mean(jnp.square(log_z_BT))
  return losses, (own, seen)


def _total(losses: dict[str, jax.Array]) -> jax.Array:
  return functools.reduce(jnp.add, losses.values())


def loss_and_gradients(config: Config, params, batch: Batch, taps, dropout_key=None, constrain=unconstrained):
  """The losses of a batch, the gradients of their sum, and what the blocks saw, the batch taken in `accumulate` parts.

  Returns:
    The losses, {'train/loss': the cross-entropy} and with `z_loss` also 'train/z_loss', as it is added; the gradient
    of their sum with respect to the parameters; that with respect to the taps, times the scored tokens n, so that the
    root of the sum of squares is sqrt(n sum_t |g_t|^2), which does not depend on the batch; and what the blocks saw.
  """
  observe = config.inspect.level == 'full'
  scored = jnp.sum(batch['weights_BT'])

  def part(batch, key):
    def loss_of(params, taps):
      losses, (_, seen) = _losses(config, params, batch, taps, key, scored, observe, constrain)
      return _total(losses), (losses, seen)

    (_, (losses, seen)), gradients = jax.value_and_grad(loss_of, (0, 1), has_aux=True)(params, taps)
    return (losses, gradients), seen

  if config.optimizer.accumulate == 1:
    (losses, (gradient, tap_gradient)), seen = part(batch, dropout_key)
  else:
    (losses, (gradient, tap_gradient)), seen = _accumulate(part, batch, dropout_key, config.optimizer.accumulate)
  return losses, gradient, jax.tree.map(lambda tap: scored * tap, tap_gradient), seen


def _accumulate(part, batch: Batch, dropout_key, count: int):
  """`part` over `count` equal parts of a batch: sums of losses and gradients; what was seen as of the whole."""
  # Part k has the rows k, k + count, ...: where rows lie on several devices, each has some of every part.
  parts = jax.tree.map(lambda rows: jnp.moveaxis(rows.reshape(-1, count, *rows.shape[1:]), 1, 0), batch)
  keys = None if dropout_key is None else jax.random.split(dropout_key, count)

  def add(total, inputs):
    result, seen = part(*inputs)
    return jax.tree.map(jnp.add, total, result), seen

  shapes, _ = jax.eval_shape(part, *jax.tree.map(lambda rows: rows[0], (parts, keys)))
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
  total, seen = jax.lax.scan(add, zeros, (parts, keys))
  of_the_whole = {'mean': jnp.mean, 'max': jnp.max}
  return total, {kind: jax.tree.map(lambda x, f=f: f(x, 0), seen[kind]) for kind, f in of_the_whole.items()}


def make_train_step(
  config: Config, constrain: Constrain = unconstrained
) -> Callable[[State, Batch], tuple[State, dict[str, Any]]]:
  """A step: (state, batch) -> (state, metrics). Pure; jit it with the state donated; for `constrain` see model.apply.

  A step whose loss, gradient or update is not finite keeps the old parameters and optimizer state, and counts. Once
  there are so many in a row that the run has diverged, nothing moves any more, whoever goes on calling.

  The metrics are device arrays. `scalars`: the losses (see `loss_and_gradients`), the learning rate, the global norms
  of the gradient (before and after clipping), the update and the parameters, the share of steps so far that were
  clipped, and nonfinite_in_a_row. With config.inspect.level `norms` also `stream_gradient`, the taps' three products
  times the scored tokens (see `loss_and_gradients`); `seen`, as model/forward_statistics.py has it; and
  `parameter_norms`, the trees `grad_norm`, `update_norm` and `param_norm`, like the parameters with one norm for each
  layer, which are computed at logged steps and where a run diverges, zero elsewhere. With `full`, the taps keep
  positions, and more is seen.
  """
  optimizer = make_optimizer(config.optimizer, config.run.steps)
  schedule = make_schedule(config.optimizer, config.run.steps)
  average = make_average(config.optimizer)
  level, clip = config.inspect.level, config.optimizer.clip

  def train_step(state: State, batch: Batch):
    key = jax.random.fold_in(jax.random.key(state.init_seed), state.step) if config.model.dropout else None
    positions = config.data.sequence_length if level == 'full' else None
    taps = None if level == 'off' else model.zero_taps(config.model, positions)
    losses, gradient, stream_gradient, seen = loss_and_gradients(config, state.params, batch, taps, key, constrain)
    norm = optax.tree.norm(gradient)
    updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
    update_norm = optax.tree.norm(updates)
    finite = jnp.isfinite(_total(losses)) & jnp.isfinite(norm) & jnp.isfinite(update_norm)
    applied = finite & ~has_diverged(config, state.nonfinite_in_a_row)
    params = optax.apply_updates(state.params, updates)
    updates_made = state.optimizer[-1].count
    new_state = dataclasses.replace(
      state,
      step=state.step + 1,
      params=_where(applied, params, state.params),
      optimizer=_where(applied, optimizer_state, state.optimizer),
      nonfinite_in_a_row=jnp.where(applied, 0, state.nonfinite_in_a_row + 1),
      clipped=state.clipped + (applied & (norm > clip) if clip else 0),
    )
    if isinstance(new_state, AveragedState):
      averaged = average(new_state.ema, params, updates_made)
      new_state = dataclasses.replace(new_state, ema=_where(applied, averaged, new_state.ema))
    metrics = {
      'scalars': {
        'nonfinite_in_a_row': new_state.nonfinite_in_a_row,
        **losses,
        'learning_rate': schedule(updates_made),
        'grad_norm/global': norm,
        'grad_norm/clipped': jnp.minimum(norm, clip) if clip else norm,
        'grad_norm/clipped_steps': new_state.clipped / new_state.step,
        'update_norm/global': update_norm,
        'param_norm/global': optax.tree.norm(state.params),
      }
    }
    if level != 'off':
      logged = is_logged(config, state.step + 1) | has_diverged(config, new_state.nonfinite_in_a_row)
      trees = {'grad_norm': gradient, 'update_norm': updates, 'param_norm': state.params}
      shapes = jax.eval_shape(_norms_by_layer, trees)
      zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
      metrics |= {
        'stream_gradient': stream_gradient,
        'seen': seen,
        'parameter_norms': jax.lax.cond(logged, _norms_by_layer, lambda _: zeros, trees),
      }
    return new_state, metrics

  return train_step


def make_evaluation_step(
  config: Config, constrain: Constrain = unconstrained
) -> Callable[[Any, Batch], tuple[jax.Array, jax.Array]]:
  """(params, batch) -> (summed nats, number of scored tokens); no dropout."""

  def evaluation_step(params, batch: Batch):
    loss, (scored, _) = weighted_loss(config, params, batch, None, constrain=constrain)
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


def _norms_by_layer(trees):
  return {name: norm_by_layer(tree) for name, tree in trees.items()}


def _where(condition, chosen, otherwise):
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), chosen, otherwise)
