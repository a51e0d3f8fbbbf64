"""Turns gradients into updates: clipping, a named optimizer, decoupled weight decay, a learning rate schedule.

Also the moving average of the parameters.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from model.config import ModelConfig
from model.connections.base import OptimizerFactors
from model.transformer import param_shapes
from training.config import OptimizerConfig
from training.parameter_tree import is_kernel, is_stacked

MUON_RMS = 0.2  # scales a Muon update to the size of AdamW's, so that learning rates transfer (Liu et al. 2025, eq. 4)


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
  """The learning rate of each update: a linear increase over warmup_steps, then the named schedule to the last step."""
  peak, rest = config.learning_rate, max(1, steps - config.warmup_steps)
  after = {
    'cosine': lambda: optax.cosine_decay_schedule(peak, rest, config.final_fraction),
    'linear': lambda: optax.linear_schedule(peak, peak * config.final_fraction, rest),
    'constant': lambda: optax.constant_schedule(peak),
    'wsd': lambda: _stable_then_decay(config, rest, config.decay_steps(steps)),
  }[config.schedule]()
  warmup = optax.linear_schedule(0.0, peak, config.warmup_steps)

  def schedule(count):  # the first update is not 0, and the last one of the warm-up is at the peak
    return jnp.where(count < config.warmup_steps, warmup(count + 1), after(count - config.warmup_steps))

  return schedule


def _stable_then_decay(config: OptimizerConfig, rest: int, decay: int) -> optax.Schedule:
  """Constant at the peak, then 1 - sqrt decay in the last `decay` of `rest` updates (Hägele et al. 2024, section 3)."""

  def schedule(count):
    done = jnp.clip((count - (rest - decay)) / decay, 0, 1)
    return config.learning_rate * (1 - (1 - config.final_fraction) * jnp.sqrt(done))

  return schedule


def updates_in_common(config: OptimizerConfig, steps: int) -> int:
  """How many of the first updates of a run of `steps` steps have the learning rates of any longer run."""
  until = {
    'constant': steps,
    'wsd': steps - config.decay_steps(steps) + 1,
  }  # the first one is still at the peak
  return min(steps, until.get(config.schedule, config.warmup_steps + 1))


def make_optimizer(
  config: OptimizerConfig, steps: int, model: ModelConfig | None = None
) -> optax.GradientTransformation:
  """The optimizer as one optax chain; its output is added to the parameters.

  AdamW: Loshchilov & Hutter 2019. Lion: Chen et al. 2023. Muon: Jordan et al. 2024, on the kernels of the blocks,
  each layer separately, with AdamW for all other parameters. SGD has momentum beta1.

  Args:
    config: the optimizer's settings.
    steps: the number of steps of the run, for the schedule.
    model: the config of the model, whose connection may multiply the learning rate, epsilon and weight decay of a
      parameter; None: no factors.
  """
  factors = None if model is None else optimizer_factors(model)
  direction = {
    'adamw': lambda: optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
    'sgd': lambda: optax.trace(config.beta1),
    'lion': lambda: optax.scale_by_lion(config.beta1, config.beta2),
    'muon': lambda: _muon(config),
  }[config.name]()
  clip = optax.clip_by_global_norm(config.clip) if config.clip else optax.identity()
  decay = optax.add_decayed_weights(config.weight_decay, decayed)
  if factors is not None:
    if config.name in ('adamw', 'muon'):
      clip = optax.chain(clip, _scaled(factors, lambda factor: 1 / factor.epsilon))
    decay = optax.chain(_decay_by_parameter(config.weight_decay, factors), _scaled(factors, lambda f: f.learning_rate))
  return optax.chain(clip, direction, decay, optax.scale_by_learning_rate(make_schedule(config, steps)))


def optimizer_factors(model: ModelConfig) -> Any | None:
  """The factors of every parameter, a tree of the model's structure; None if all are 1."""
  connect = model.connection_class
  factors = jax.tree.map_with_path(
    lambda path, _: connect.optimizer_factors(model, '/'.join(key.key for key in path)), param_shapes(model)
  )
  found = set(jax.tree.leaves(factors, is_leaf=_is_factors))
  return None if found == {OptimizerFactors()} else factors


def _is_factors(value: Any) -> bool:
  return isinstance(value, OptimizerFactors)


def _scaled(factors: Any, number: Callable[[OptimizerFactors], float]) -> optax.GradientTransformation:
  """Multiplies the update of each parameter by a number of its factors.

  Before Adam, 1 / f multiplies epsilon by f: (m / f) / (sqrt(v) / f + epsilon) = m / (sqrt(v) + f epsilon).
  """

  def scale(updates, params):
    del params
    return jax.tree.map(lambda factor, update: number(factor) * update, factors, updates, is_leaf=_is_factors)

  return optax.stateless(scale)


def _decay_by_parameter(weight_decay: float, factors: Any) -> optax.GradientTransformation:
  """As `optax.add_decayed_weights`, with the factors on the weight decay."""

  def add(updates, params):
    return jax.tree.map(
      lambda factor, decays, update, param: update + weight_decay * factor.weight_decay * param if decays else update,
      factors, decayed(params), updates, params, is_leaf=_is_factors,
    )  # fmt: skip

  return optax.stateless(add)


def make_average(config: OptimizerConfig) -> Callable[[Any, Any, jax.Array], Any]:
  """A function (average, params, updates before) -> the moving average that includes these params.

  After t updates it is sum_k d^(t - k) params_k / sum_k d^(t - k), k = 1 to t, with d = config.ema: the average of
  Polyak & Juditsky 1992 over about the last 1 / (1 - d) updates, or over all of them while they are fewer. The initial
  value has no weight.
  """

  def average(before, params, updates):
    # The weight of the newest params, (1 - d) / (1 - d^t); expm1 avoids the cancellation in 1 - d^t for d near 1.
    share = (1 - config.ema) / -jnp.expm1((updates + 1) * math.log(config.ema))
    return jax.tree.map(lambda mean, new: mean + share * (new - mean), before, params)

  return average


def _muon(config: OptimizerConfig) -> optax.GradientTransformation:
  """Muon for the kernels of the blocks, (layer, in, out) with the layer as a batch axis; Adam for other parameters."""

  def dimensions(params):
    return jax.tree.map(lambda _: contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2), params)

  def match_adam(updates, params):
    del params
    return jax.tree.map(lambda u: u * MUON_RMS * max(u.shape[-2:]) ** 0.5, updates)

  return optax.partition(
    {
      'muon': optax.chain(
        contrib.scale_by_muon(beta=config.beta1, eps=config.epsilon, weight_dimension_numbers=dimensions),
        optax.stateless(match_adam),
      ),
      'adam': optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
    },
    lambda params: jax.tree.map(lambda hidden: 'muon' if hidden else 'adam', hidden_kernels(params)),
  )


def decayed(params):
  """The parameters with weight decay: the kernels, by name, since stacking by layer adds an axis to every shape."""
  return jax.tree.map_with_path(lambda path, _: is_kernel(path), params)


def hidden_kernels(params):
  """The kernels of the blocks, as a tree of booleans."""
  return jax.tree.map_with_path(lambda path, _: is_stacked(path) and is_kernel(path), params)
