"""From a step's device arrays to named numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from training.measures import SUBLAYERS, forward_measures, gradient_measures, ratio


def named_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
  """Names every number of a step's metrics (see training/step.py); waits for the device.

  Layers are `block_00`, `block_01`, ..., sublayers `attention` and `feed_forward`.

    stream_gradient/block_03/attention/   `total`, `skip` and `branch`, each sqrt(n sum_t |g_t|^2) of the gradient at
                                          the sublayer's input (n: scored tokens), the `cosine` between the two paths,
                                          and the `gain`, `total` over that at the sublayer's output
    stream_gradient/output/total          at the stack's output
    grad_norm/block_03/attention/query    of each parameter and layer; so also `update_norm`, `param_norm` and
                                          `update_ratio`, the update's over the parameter's
    stream_rms/block_03/attention         root mean square of the stream after the sublayer

  With inspect.level=full also the rest of `training.measures.forward_measures`, by sublayer or, as
  attention_entropy/block_03/head_0, by head; and lists, one number a position:

    stream_gradient_by_position/...       as stream_gradient; the squares of a norm add up to that of all positions

  Returns:
    A float, or a list of floats, by name.
  """
  metrics = jax.device_get(metrics)
  named: dict[str, Any] = {name: float(value) for name, value in metrics['scalars'].items()}
  if 'stream_gradient' not in metrics:
    return named
  products = metrics['stream_gradient']
  if products['output'].ndim == 2:
    named |= _named_gradients('stream_gradient_by_position', products)
    products = jax.tree.map(lambda by_position: by_position.sum(-2, dtype=np.float64), products)
  named |= _named_gradients('stream_gradient', products)
  for measure, values in forward_measures(metrics['seen']).items():
    named |= {f'{measure}/{place}': value for place, value in places(measure, values)}
  norms = metrics['parameter_norms']
  ratios = jax.tree.map(ratio, norms['update_norm'], norms['param_norm'])
  for kind, tree in {**norms, 'update_ratio': ratios}.items():
    named |= {f'{kind}/{name}': value for name, value in named_parameters(tree)}
  return named


def _named_gradients(prefix: str, products: Mapping[str, np.ndarray]) -> dict[str, Any]:
  measures = gradient_measures(products)
  named = {f'{prefix}/output/total': measures.pop('output').tolist()}
  for part, values in measures.items():
    named |= {f'{prefix}/{place}/{part}': value for place, value in places(part, values)}
  return named


def places(measure: str, values: np.ndarray) -> Iterator[tuple[str, Any]]:
  """('block_03/attention', value) for each layer and sublayer; heads and whole layers likewise.

  Args:
    measure: a name of training/measures.py.
    values: (L, ...) of it; a value with axes left, as positions, is a list.
  """
  for layer, value in enumerate(values):
    place = f'block_{layer:02d}'
    if measure == 'silent_units':
      yield place, value.tolist()
    elif measure in ('attention_entropy', 'largest_logit'):
      yield from ((f'{place}/head_{head}', one.tolist()) for head, one in enumerate(value))
    else:
      yield from ((f'{place}/{name}', one.tolist()) for name, one in zip(SUBLAYERS, value, strict=True))


def named_parameters(tree) -> Iterator[tuple[str, float]]:
  """('block_03/attention/query', value) for each layer of each parameter.

  Args:
    tree: like the parameters, with one number a layer.
  """
  for path, values in jax.tree.leaves_with_path(tree):
    name = parameter_name(path)
    if path[0].key == 'blocks':
      yield from ((f'block_{layer:02d}/{name}', float(value)) for layer, value in enumerate(values))
    else:
      yield name, float(values)


def parameter_name(path) -> str:
  """`attention/query` of a parameter's path in the tree; a kernel goes without its name, and so do the blocks."""
  keys = [key.key for key in path]
  return '/'.join(keys[keys[0] == 'blocks' : len(keys) - (keys[-1] == 'kernel')])
