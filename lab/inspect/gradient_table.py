"""Gradients as a table for a terminal: one row a sublayer with a bar, or one row a depth."""

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from lab.analysis import statistics
from lab.cli.tables import new_table
from lab.inspect.gradients import Measured
from training.metric_names import GRAD_NORM, SUBLAYERS, MetricName

BARS = (16, 10, 6, 0)  # characters of a bar, the longest that the terminal takes
PATHS = ('skip', 'branch', 'cosine', 'gain')
EIGHTHS = ' ▏▎▍▌▋▊▉█'
LOGARITHMIC = 20  # times: beyond this range a bar shows the logarithm
OUTPUT_KERNEL = 'feed_forward/down'  # of the feed-forward
LAST_KERNEL = str(MetricName(GRAD_NORM, site=OUTPUT_KERNEL))


def by_sublayer(measured: Sequence[Measured], width: int = 100) -> Table:
  """One row a sublayer; for each subject its norms, a bar of the total, the cosine and the gain.

  In so many columns: where they are too few, first the bars get shorter, then the two paths are left out.
  """
  layouts: list[tuple[int, tuple[str, ...]]] = [(bar, PATHS) for bar in BARS] + [(0, ('cosine', 'gain'))]
  if len(measured) > 1:
    layouts = [(bar, ('cosine',)) for bar in BARS[1:]]
  return _first_that_fits([_by_sublayer(measured, *layout) for layout in layouts], width)


def _first_that_fits(views: Sequence[Table], width: int) -> Table:
  console = Console(width=1000)
  return next((view for view in views if console.measure(view).maximum <= width), views[-1])


def _by_sublayer(measured: Sequence[Measured], bars: int, names: Sequence[str]) -> Table:
  """The table with bars of this length, and these columns beside the total."""
  totals = np.concatenate([[*one.mean('total').ravel(), float(one.mean('output'))] for one in measured])
  low, high = float(totals.min()), float(totals.max())
  scale = f'; bars: logarithm, {low:.2g} to {high:.2g}' if _logarithmic(low, high) else ''
  batches = len(measured[0].samples['loss'])
  gain = '; gain: the total over that at the output of the sublayer' if 'gain' in names else ''
  losses = '; '.join(f'{one.label}: {number(one.mean("loss"), one.half_width("loss"))}' for one in measured)
  view = new_table(
    f'gradient in the stream at the input of each sublayer, nats a unit{scale}',
    caption='norms over tokens, sqrt(n sum_t |g_t|^2) with n the scored tokens, so they do not depend on the batch; '
    f'±: 95% interval over {batches} batches; cosine: between the skip and the branch part{gain}'
    f'\nloss in nats a token: {losses}',
  )
  view.add_column('layer', justify='right', overflow='fold')
  view.add_column('sublayer', overflow='fold')
  for one in measured:
    view.add_column(one.label.replace(', ', '\n') + '\ntotal', justify='right', overflow='fold')
    if bars:
      view.add_column('', no_wrap=True)
    for name in names:
      view.add_column(name, justify='right', overflow='fold')
  for layer in range(max(one.layers for one in measured)):
    for k, sublayer in enumerate(SUBLAYERS):
      cells = [cell for one in measured for cell in _sublayer_cells(one, layer, k, low, high, bars, names)]
      view.add_row('' if k else str(layer), sublayer, *cells)
  cells = []
  for one in measured:
    output, half = float(one.mean('output')), float(one.half_width('output'))
    cells += [*_total_cells(output, half, low, high, bars, names), *([''] * len(names))]
  view.add_row('', 'output', *cells)
  return view


def _sublayer_cells(
  one: Measured, layer: int, k: int, low: float, high: float, bars: int, names: Sequence[str]
) -> list[str]:
  if layer >= one.layers:
    return [''] * (1 + bool(bars) + len(names))
  total = _total_cells(one.mean('total')[layer, k], one.half_width('total')[layer, k], low, high, bars, names)
  values = {name: one.mean(name)[layer, k] for name in names}
  return [*total, *(f'{value:+.2f}' if name == 'cosine' else number(value) for name, value in values.items())]


def _total_cells(value: float, half: float, low: float, high: float, bars: int, names: Sequence[str]) -> list[str]:
  total = number(value, half if 'gain' in names else None)  # side by side there is no space for the interval
  return [total, bar(value, low, high, bars)] if bars else [total]


def by_depth(measured: Sequence[Measured], width: int = 100) -> Table:
  """One row a depth: the gradient at both ends of the stack, and of the last feed-forward's output kernel.

  In so many columns: where they are too few, the bars get shorter.
  """
  return _first_that_fits([_by_depth(measured, bars) for bars in BARS], width)


def _by_depth(measured: Sequence[Measured], bars: int) -> Table:
  last = [one.mean(LAST_KERNEL)[-1] for one in measured]
  view = new_table(
    f'{measured[0].subject.name}: gradients at the initial values, by depth',
    caption='stream: norm over tokens, sqrt(n sum_t |g_t|^2), in nats a unit; kernel: the gradient averaged over the '
    f'batch, then its Frobenius norm; ±: 95% interval over {len(measured[0].samples["loss"])} batches, '
    f'each with initial values of its own\n{exponent_words(measured)}',
  )
  view.add_column('layers', justify='right', overflow='fold')
  for name in ('stream,\nfirst layer', 'stream,\noutput', 'first over\noutput', 'last feed-\nforward\nkernel'):
    view.add_column(name, justify='right', overflow='fold')
  if bars:
    view.add_column('', no_wrap=True)
  for one in measured:
    first, output = one.samples['total'][:, 0, 0], one.samples['output']
    view.add_row(
      str(one.layers),
      number(first.mean(), statistics.half_width(first)),
      number(output.mean(), statistics.half_width(output)),
      number((first / output).mean(), statistics.half_width(first / output)),
      number(one.mean(LAST_KERNEL)[-1], one.half_width(LAST_KERNEL)[-1]),
      *([bar(one.mean(LAST_KERNEL)[-1], min(last), max(last), bars)] if bars else []),
    )
  return view


def exponent(measured: Sequence[Measured], measure: str = LAST_KERNEL) -> tuple[float, float]:
  """How a measure of the last layer goes with depth: the log-log slope, and its half-width.

  One least-squares line for each batch, with its own initial values; their mean, and its 95% interval (Student's t).
  """
  norms = np.array([one.samples[measure][:, -1] for one in measured]).T  # (batch, depth)
  slopes = statistics.power_law_exponent([one.layers for one in measured], norms)
  return float(slopes.mean()), float(statistics.half_width(slopes))


def exponent_words(measured: Sequence[Measured]) -> str:
  """The exponent as a line."""
  if len(measured) < 2:
    return 'one depth gives no exponent'
  slope, half = exponent(measured)
  return f'last feed-forward kernel: depth^({slope:+.3f} ± {half:.3f})'


def number(value, half=None) -> str:
  """Three digits, and what the interval adds and takes away."""
  text = f'{value:.3g}' if 1e-3 <= abs(value) < 1e4 or value == 0 else f'{value:.1e}'
  return text if half is None or not math.isfinite(half) else f'{text} ±{half:.1g}'


def bar(value: float, low: float, high: float, width: int) -> str:
  """A bar of up to `width` characters, in eighths; from 0, or between logarithms where the range is wide."""
  if not math.isfinite(value) or value <= 0:
    return ''
  if _logarithmic(low, high):
    share = (math.log(value / low) / math.log(high / low) * (width - 1) + 1) / width
  else:
    share = value / high
  eighths = max(1, round(share * width * 8))
  return '█' * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _logarithmic(low: float, high: float) -> bool:
  return 0 < low < high / LOGARITHMIC
