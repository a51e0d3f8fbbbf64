"""Parameters and a batch in, a small dict of NumPy arrays out: what the gradient and the blocks do, for a notebook.

config = Config.from_flat(json.load(open('runs/block/baseline/seed_0/config.json')))
params = model.init(config.model, jax.random.key(0))
batch = next(train_batches(load_for(config), config.run.batch_size, seed=0, start_step=0, num_steps=1))
inspect(config, params, batch)['cosine']  # (layers, 2)
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import model
from training.config import Config
from training.data.sources import Batch
from training.measures import forward_measures, gradient_measures
from training.metrics import parameter_name
from training.step import loss_and_gradients, norm_by_layer, objective


def inspect(
  config: Config, params, batch: Batch, by_position: bool = False, by_sequence: bool = False
) -> dict[str, np.ndarray]:
  """Measures a model on a batch, without dropout; everything in float64, from float32 sums.

  Args:
    config: the model, and the length of its sequences.
    params: as `model.init` makes them.
    batch: as `training.data.loading.train_batches` gives them: inputs_BT, targets_BT, weights_BT.
    by_position: whether the two paths are measured at every position.
    by_sequence: whether the gradient of each sequence is taken alone too, one after the other.

  Returns:
    L layers, the two sublayers (attention first), T positions with by_position.

      loss                                 ()             nats a token
      total, skip, branch, cosine, gain    (L, 2[, T])    the gradient of the loss in the stream, at each sublayer's
                                                          input: see `training.measures.gradient_measures`. A norm over
                                                          tokens, sqrt(n sum_t |g_t|^2) with n the scored tokens
      output                               ([T])          the same at the output of the stack
      stream_rms, branch_rms, ...                         the forward pass: see `training.measures.forward_measures`
      grad_norm/attention/query, ...       (L,) or ()     the gradient of a parameter, averaged over the batch, and then
                                                          its Frobenius norm (as in Xiong et al. 2020, figure 3)
      param_norm/attention/query, ...      (L,) or ()     the Frobenius norm of the parameter
      sequence_grad_norm/..., by_sequence  (L,) or ()     the norm of each sequence's own gradient, and then the root
                                                          mean square over sequences: never smaller
  """
  config = config.replace({'inspect.level': 'full', 'optimizer.accumulate': 1})
  measured = jax.device_get(_program(config, by_position, by_sequence)(params, dict(batch)))
  found = {'loss': np.asarray(measured['loss'], np.float64)}
  found |= gradient_measures(measured['stream_gradient'])
  found |= forward_measures(measured['seen'])
  for kind, tree in measured['norms'].items():
    for path, norms in jax.tree.leaves_with_path(tree):
      found[f'{kind}/{parameter_name(path)}'] = np.asarray(norms, np.float64)
  return found


@functools.lru_cache(maxsize=8)
def _program(config: Config, by_position: bool, by_sequence: bool):
  def sequence_norms(params, row):
    gradient = jax.grad(lambda params: objective(config, params, row))(params)
    return jax.tree.map(jnp.square, norm_by_layer(gradient))

  def measure(params, batch):
    taps = model.zero_taps(config.model, batch['inputs_BT'].shape[1] if by_position else None)
    losses, gradient, stream_gradient, seen = loss_and_gradients(config, params, batch, taps)
    norms = {'grad_norm': norm_by_layer(gradient), 'param_norm': norm_by_layer(params)}
    if by_sequence:
      rows = jax.tree.map(lambda x: x[:, None], batch)
      squares = jax.lax.map(functools.partial(sequence_norms, params), rows)
      norms['sequence_grad_norm'] = jax.tree.map(lambda x: jnp.sqrt(jnp.mean(x, 0)), squares)
    return {'loss': losses['train/loss'], 'stream_gradient': stream_gradient, 'seen': seen, 'norms': norms}

  return jax.jit(measure)
