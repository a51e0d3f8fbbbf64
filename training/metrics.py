"""From a step's device arrays to named numbers."""

import math
from collections.abc import Mapping
from typing import Any

import jax

SUBLAYERS = ('attention', 'feed_forward')


def named_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
  """Names every number of a step's metrics (see training/step.py); waits for the device.

  Layers are `block_00`, `block_01`, ...; for each sublayer `stream_gradient/block_03/attention/` has `total`, `skip`
  and `branch`, each sqrt(n sum_t |g_t|^2) of the gradient at the sublayer's input (n: scored tokens), and `cosine`
  between the two paths. `stream_gradient/output/total` is the gradient at the stack's output. `grad_norm/` has one
  norm a parameter and layer, `stream_rms/` the stream's root mean square after each sublayer.
  """
  metrics = jax.device_get(metrics)
  named = {name: float(value) for name, value in metrics['scalars'].items()}
  if 'stream_gradient' not in metrics:
    return named
  for layer, products_of_sublayers in enumerate(metrics['stream_gradient']['blocks']):
    for sublayer, products in zip(SUBLAYERS, products_of_sublayers, strict=True):
      place = f'stream_gradient/block_{layer:02d}/{sublayer}'
      named |= {f'{place}/{part}': value for part, value in two_paths(products).items()}
  named['stream_gradient/output/total'] = math.sqrt(metrics['stream_gradient']['output'][0])
  for sublayer, rms_L in metrics['stream_rms'].items():
    named |= {f'stream_rms/block_{layer:02d}/{sublayer}': float(rms) for layer, rms in enumerate(rms_L)}
  for path, norm in jax.tree.leaves_with_path(metrics['grad_norms']):
    named |= {f'grad_norm/{name}': value for name, value in _by_layer([key.key for key in path], norm)}
  return named


def two_paths(products) -> dict[str, float]:
  """The norms of the skip gradient, the branch gradient and their sum, and the cosine between the two.

  Args:
    products: [<skip, skip>, <branch, branch>, <skip, branch>], as `model.residual.fork` measures them.

  Returns:
    `total`, `skip`, `branch`, `cosine`; the cosine is 0 where a path carries nothing.
  """
  skip, branch, inner = (float(product) for product in products)
  size = math.sqrt(skip * branch) if skip * branch >= 0 else math.nan
  return {
    'total': math.sqrt(max(skip + branch + 2 * inner, 0.0)),  # below 0 by rounding alone, where the paths cancel
    'skip': math.sqrt(skip),
    'branch': math.sqrt(branch),
    'cosine': inner / size if size else 0.0,
  }


def _by_layer(path: list[str], norm):
  """('block_03/attention/query', value) for each layer of a stacked parameter; a kernel goes without its name."""
  tail = path[:-1] if path[-1] == 'kernel' else path
  if path[0] != 'blocks':
    return [('/'.join(tail), float(norm))]
  return [('/'.join([f'block_{layer:02d}', *tail[1:]]), float(value)) for layer, value in enumerate(norm)]
