"""Converts a step's device arrays to named numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from training.measures import PER_HEAD, PER_LAYER, forward_measures, gradient_measures, ratio
from training.metric_names import (
  OUTPUT,
  PARAM_NORM,
  STREAM_GRADIENT,
  STREAM_GRADIENT_BY_POSITION,
  SUBLAYERS,
  UPDATE_NORM,
  UPDATE_RATIO,
  MetricName,
)
from training.parameter_tree import is_stacked, parameter_name


def named_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
  """Names every number of a step's metrics (see training/step.py); waits for the device.

  Layers are `block_00`, `block_01`, ..., sublayers `attention` and `feed_forward`.

    stream_gradient/block_03/attention/   `total`, `skip` and `branch`, each sqrt(n sum_t |g_t|^2) of the gradient at
                                          the sublayer's input (n: scored tokens), the `cosine` between the two paths,
                                          and the `gain`, `total` over the total at the sublayer's output
    stream_gradient/output/total          at the stack's output
    grad_norm/block_03/attention/query    of each parameter and layer; likewise `update_norm`, `param_norm` and
                                          `update_ratio`, the norm of the update over that of the parameter
    stream_rms/block_03/attention         root mean square of the stream after the sublayer

  With inspect.level=full, the other measures of `training.measures.forward_measures`, by sublayer, by layer or, like
  attention_entropy/block_03/head_0, by head; and lists with one number per position:

    stream_gradient_by_position/...       as stream_gradient; the squared norms add up to the one over all positions

  Returns:
    A float, or a list of floats, by name.
  """
  metrics = jax.device_get(metrics)
  named: dict[str, Any] = {name: float(value) for name, value in metrics['scalars'].items()}
  if 'stream_gradient' not in metrics:
    return named
  products = metrics['stream_gradient']
  if products['output'].ndim == 2:
    named |= _named_gradients(STREAM_GRADIENT_BY_POSITION, products)
    products = jax.tree.map(lambda by_position: by_position.sum(-2, dtype=np.float64), products)
  named |= _named_gradients(STREAM_GRADIENT, products)
  for measure, values in forward_measures(metrics['stats']).items():
    named |= {str(MetricName(measure, layer, site)): value for layer, site, value in by_site(measure, values)}
  norms = metrics['parameter_norms']
  ratios = jax.tree.map(ratio, norms[UPDATE_NORM], norms[PARAM_NORM])
  for measure, tree in {**norms, UPDATE_RATIO: ratios}.items():
    named |= {str(MetricName(measure, layer, site)): value for layer, site, value in _by_parameter(tree)}
  return named


def _named_gradients(measure: str, products: Mapping[str, np.ndarray]) -> dict[str, Any]:
  parts = gradient_measures(products)
  named = {str(MetricName(measure, site=OUTPUT, part='total')): parts.pop('output').tolist()}
  for part, values in parts.items():
    named |= {str(MetricName(measure, layer, site, part)): value for layer, site, value in by_site(part, values)}
  return named


def by_site(measure: str, values: np.ndarray) -> Iterator[tuple[int, str, Any]]:
  """(3, 'attention', value) for each layer and sublayer; (3, 'head_0', value) and (3, '', value) by head and by layer.

  Args:
    measure: its name in training/measures.py.
    values: its values, (L, ...); axes after the sublayers', such as positions, become lists.
  """
  for layer, value in enumerate(values):
    if measure in PER_LAYER:
      yield layer, '', value.tolist()
    elif measure in PER_HEAD:
      yield from ((layer, f'head_{head}', one.tolist()) for head, one in enumerate(value))
    else:
      yield from ((layer, sublayer, one.tolist()) for sublayer, one in zip(SUBLAYERS, value, strict=True))


def _by_parameter(tree) -> Iterator[tuple[int | None, str, float]]:
  """(3, 'attention/query', value) for each layer of each parameter; the layer is None outside the blocks.

  Args:
    tree: like the parameters, with one number per layer.
  """
  for path, values in jax.tree.leaves_with_path(tree):
    name = parameter_name(path)
    if is_stacked(path):
      yield from ((layer, name, float(value)) for layer, value in enumerate(values))
    else:
      yield None, name, float(values)
