"""Measures the gradients and the forward pass of a model on one batch, for a notebook or lab/inspect.

config = Config.from_flat(json.load(open('runs/block/baseline/seed_0/config.json')))
params = model.init(config.model, jax.random.key(0))
batch = next(train_batches(load_data(config), config.run.batch_size, seed=0, start_step=0, num_steps=1))
inspect(config, params, batch)['cosine']  # (layers, 2)

If an experiment file registered a part of the model, `training.ideas.load(Path('ideas/my_gate.py'))` comes before these
lines: it executes the file, which reading a run never does.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import model
from training.config import Config
from training.data.dataset import Batch
from training.measures import connection_weights, forward_measures, gradient_measures
from training.metric_names import GRAD_NORM, PARAM_NORM, SEQUENCE_GRAD_NORM, TRAIN_LOSS, MetricName
from training.parameter_tree import parameter_name
from training.step import loss_and_gradients, norm_per_layer, objective


def inspect(
  config: Config, params, batch: Batch, by_position: bool = False, by_sequence: bool = False
) -> dict[str, np.ndarray]:
  """Measures a model on a batch, without dropout; float64, from sums in float32.

  Args:
    config: the run's config: its model and sequence length.
    params: as returned by `model.init`.
    batch: as `training.data.batches.train_batches` yields them: inputs_BT, targets_BT, weights_BT.
    by_position: whether to measure the two paths at every position.
    by_sequence: whether to also take the gradient of each sequence separately, one after the other.

  Returns:
    Arrays by name, over L layers, the two sublayers (attention first) and, with by_position, T positions.

      loss                                 ()             nats per token
      total, skip, branch, cosine, gain    (L, 2[, T])    the gradient of the loss in the stream, at each sublayer's
                                                          input: see `training.measures.gradient_measures`. Norms over
                                                          tokens, sqrt(n sum_t |g_t|^2) with n scored tokens
      output                               ([T])          the same at the output of the stack
      reading, mixing, writing             (L, 2, ...)    the weights of designs with several streams or sources: see
                                                          `training.measures.connection_weights`
      stream_rms, branch_rms, ...                         the forward pass: see `training.measures.forward_measures`
      grad_norm/attention/query, ...       (L,) or ()     the Frobenius norm of a parameter's gradient averaged over the
                                                          batch (as in Xiong et al. 2020, figure 3)
      param_norm/attention/query, ...      (L,) or ()     the Frobenius norm of the parameter
      sequence_grad_norm/..., by_sequence  (L,) or ()     the root mean square over sequences of the norm of each
                                                          sequence's gradient; never smaller than grad_norm
  """
  config = config.replace({'inspect.level': 'full', 'optimizer.accumulate': 1})
  measured = jax.device_get(_program(config, by_position, by_sequence)(params, dict(batch)))
  named = {'loss': np.asarray(measured['loss'], np.float64)}
  named |= gradient_measures(measured['stream_gradient'])
  named |= forward_measures(measured['stats'])
  named |= connection_weights(measured['stats'])
  for measure, tree in measured['norms'].items():
    for path, norms in jax.tree.leaves_with_path(tree):
      named[str(MetricName(measure, site=parameter_name(path)))] = np.asarray(norms, np.float64)
  return named


@functools.lru_cache(maxsize=8)
def _program(config: Config, by_position: bool, by_sequence: bool):
  def sequence_norms(params, row):
    gradient = jax.grad(lambda params: objective(config, params, row))(params)
    return jax.tree.map(jnp.square, norm_per_layer(gradient))

  def measure(params, batch):
    taps = model.zero_taps(config.model, batch['inputs_BT'].shape[1] if by_position else None)
    losses, gradient, stream_gradient, stats = loss_and_gradients(config, params, batch, taps)
    norms = {GRAD_NORM: norm_per_layer(gradient), PARAM_NORM: norm_per_layer(params)}
    if by_sequence:
      rows = jax.tree.map(lambda x: x[:, None], batch)
      squares = jax.lax.map(functools.partial(sequence_norms, params), rows)
      norms[SEQUENCE_GRAD_NORM] = jax.tree.map(lambda x: jnp.sqrt(jnp.mean(x, 0)), squares)
    return {'loss': losses[TRAIN_LOSS], 'stream_gradient': stream_gradient, 'stats': stats, 'norms': norms}

  return jax.jit(measure)
