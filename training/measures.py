"""Converts the moments that a step measures to readable quantities: norms, cosines, gains, ratios. NumPy, float64.

Arrays are (L, 2, ...): L layers and the two sublayers, attention first.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from training.metric_names import CONNECTION_WEIGHTS, STREAM_RMS, SUBLAYERS

PER_HEAD = ('attention_entropy', 'largest_logit')  # (L, H)
PER_LAYER = ('silent_units',)  # (L,)


def gradient_measures(products: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The two paths of the gradient at every sublayer.

  Args:
    products: `blocks` (L, 2, ..., 3) and `output` (..., 3) of [<skip, skip>, <branch, branch>, <skip, branch>], as
      `model.residual.fork` measures them; `...` is empty, or the positions.

  Returns:
    `total`, `skip` and `branch`, the norms of the gradient at the sublayer's input and of its two parts; `cosine`
    between the parts, 0 where one of them is 0; `gain`, the total over the total at the sublayer's output, NaN where
    the latter is 0; each (L, 2, ...). And `output` (...), the norm at the output of the stack.
  """
  skip, branch, inner = np.moveaxis(np.asarray(products['blocks'], np.float64), -1, 0)
  total = np.sqrt(np.maximum(skip + branch + 2 * inner, 0))  # rounding can make it negative where the paths cancel
  output = np.sqrt(np.asarray(products['output'], np.float64)[..., 0])
  chain = np.concatenate([total.reshape(-1, *output.shape), output[None]])
  return {
    'total': total,
    'skip': np.sqrt(skip),
    'branch': np.sqrt(branch),
    'cosine': _cosine(skip, branch, inner),
    'gain': ratio(chain[:-1], chain[1:]).reshape(total.shape),
    'output': output,
  }


def forward_measures(stats: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
  """The measures of the forward pass.

  Args:
    stats: the forward statistics of model/forward_statistics.py, with a leading layer axis.

  Returns:
    `stream_rms` (L, 2), the root mean square of the stream after a sublayer. With `observe` also

      branch_rms          (L, 2)  root mean square of the branch's output, as it is added to the stream
      branch_ratio        (L, 2)  branch_rms over the root mean square of the stream it is added to
      branch_cosine       (L, 2)  the cosine between the two, over all positions at once
      relative_residual   (L, 2)  of the stream after the sublayer (model/forward_statistics.py); 0
      attention_entropy   (L, H)  in nats
      largest_logit       (L, H)
      silent_units        (L,)    share of dead units: those that were 0 at every position (ReLU family)
  """
  means, maxima = stats['mean'], stats['max']

  def both(name: str) -> np.ndarray:
    return np.stack([np.asarray(means[name][sublayer], np.float64) for sublayer in SUBLAYERS], 1)

  measures = {STREAM_RMS: np.sqrt(both('stream_square'))}
  if 'branch_square' in means:
    inputs, branches = both('input_square'), both('branch_square')
    measures |= {
      'branch_rms': np.sqrt(branches),
      'branch_ratio': np.sqrt(ratio(branches, inputs)),
      'branch_cosine': _cosine(inputs, branches, both('branch_inner')),
      'relative_residual': both('relative_residual'),
      'attention_entropy': np.asarray(means['attention_entropy'], np.float64),
      'largest_logit': np.asarray(maxima['largest_logit'], np.float64),
    }
  if 'active_units' in maxima:
    measures['silent_units'] = 1 - np.asarray(maxima['active_units'], np.float64).mean(-1)
  return measures


def connection_weights(stats: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
  """The weights by which the sublayers connect the arrays of the state: `model.connections.base.Connection.weights`.

  Args:
    stats: the forward statistics of model/forward_statistics.py, with a leading layer axis.

  Returns:
    Those that the design has: `reading` (L, 2, sources), `mixing` (L, 2, n, n) and `writing` (L, 2, n).
  """
  means = stats['mean']
  return {
    name: np.stack([np.asarray(means[name][sublayer], np.float64) for sublayer in SUBLAYERS], 1)
    for name in CONNECTION_WEIGHTS
    if name in means
  }


def ratio(numerator, denominator) -> np.ndarray:
  """The quotient; NaN where the denominator is 0."""
  denominator = np.asarray(denominator, np.float64)
  return np.where(denominator == 0, np.nan, numerator / np.where(denominator == 0, 1, denominator))


def _cosine(a_square, b_square, inner) -> np.ndarray:
  size = np.sqrt(a_square * b_square)
  return np.where(size == 0, 0.0, inner / np.where(size == 0, 1, size))
