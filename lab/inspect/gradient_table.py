"""Tables of gradients for the terminal: one row per sublayer with a bar, or one row per depth."""

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from lab.analysis import statistics
from lab.cli.tables import new_table
from lab.inspect.gradients import GradientSamples
from training.metric_names import GRAD_NORM, SUBLAYERS, MetricName

BAR_WIDTHS = (16, 10, 6, 0)  # characters; the widest that fits the terminal is used
PATHS = ('skip', 'branch', 'cosine', 'gain')
EIGHTHS = ' ▏▎▍▌▋▊▉█'
LOGARITHMIC_FROM = 20  # ratio of largest to smallest value above which bars are logarithmic
OUTPUT_KERNEL = 'feed_forward/down'  # the output kernel of the feed-forward
LAST_KERNEL = str(MetricName(GRAD_NORM, site=OUTPUT_KERNEL))


def by_sublayer(measured: Sequence[GradientSamples], width: int = 100) -> Table:
  """One row per sublayer with, for each model, gradient norms, a bar of the total, the cosine and the gain.

  Args:
    measured: one or two models.
    width: the width of the terminal. If it is too narrow, first the bars are shortened, then the two paths are omitted.
  """
  layouts: list[tuple[int, tuple[str, ...]]] = [(bar, PATHS) for bar in BAR_WIDTHS] + [(0, ('cosine', 'gain'))]
  if len(measured) > 1:
    layouts = [(bar, ('cosine',)) for bar in BAR_WIDTHS[1:]]
  return _first_that_fits([_by_sublayer(measured, *layout) for layout in layouts], width)


def _first_that_fits(tables: Sequence[Table], width: int) -> Table:
  console = Console(width=1000)
  return next((table for table in tables if console.measure(table).maximum <= width), tables[-1])


def _by_sublayer(measured: Sequence[GradientSamples], bar_width: int, names: Sequence[str]) -> Table:
  """The table with bars of this width, and these columns next to the total."""
  totals = np.concatenate([[*one.mean('total').ravel(), float(one.mean('output'))] for one in measured])
  low, high = float(totals.min()), float(totals.max())
  scale = f'; bars: logarithmic, {low:.2g} to {high:.2g}' if _logarithmic(low, high) else ''
  batches = measured[0].batches
  gain = '; gain: the total divided by that at the output of the sublayer' if 'gain' in names else ''
  zero = ', 0 where one of them is 0' if any(one.has_empty_path for one in measured) else ''
  losses = '; '.join(f'{one.label}: {format_number(one.mean("loss"), one.half_width("loss"))}' for one in measured)
  table = new_table(
    f'gradient of the residual stream at the input of each sublayer, nats per unit{scale}',
    caption='norms over tokens, sqrt(n sum_t |g_t|^2) with n the scored tokens, which do not depend on the batch size; '
    f'±: 95% interval over {batches} batches; cosine: between skip path and branch{zero}{gain}'
    f'\nloss in nats per token: {losses}',
  )
  table.add_column('layer', justify='right', overflow='fold')
  table.add_column('sublayer', overflow='fold')
  for one in measured:
    table.add_column(one.label.replace(', ', '\n') + '\ntotal', justify='right', overflow='fold')
    if bar_width:
      table.add_column('', no_wrap=True)
    for name in names:
      table.add_column(name, justify='right', overflow='fold')
  for layer in range(max(one.layers for one in measured)):
    for k, sublayer in enumerate(SUBLAYERS):
      cells = [cell for one in measured for cell in _sublayer_cells(one, layer, k, low, high, bar_width, names)]
      table.add_row('' if k else str(layer), sublayer, *cells)
  cells = []
  for one in measured:
    output, half_width = float(one.mean('output')), float(one.half_width('output'))
    cells += [*_total_cells(output, half_width, low, high, bar_width, names), *([''] * len(names))]
  table.add_row('', 'output', *cells)
  return table


def _sublayer_cells(
  one: GradientSamples, layer: int, k: int, low: float, high: float, bar_width: int, names: Sequence[str]
) -> list[str]:
  if layer >= one.layers:
    return [''] * (1 + bool(bar_width) + len(names))
  total = _total_cells(one.mean('total')[layer, k], one.half_width('total')[layer, k], low, high, bar_width, names)
  values = {name: one.mean(name)[layer, k] for name in names}
  return [*total, *(f'{value:+.2f}' if name == 'cosine' else format_number(value) for name, value in values.items())]


def _total_cells(
  value: float, half_width: float, low: float, high: float, bar_width: int, names: Sequence[str]
) -> list[str]:
  shows_interval = 'gain' in names  # with two models side by side there is no space for it
  total = format_number(value, half_width if shows_interval else None)
  return [total, text_bar(value, low, high, bar_width)] if bar_width else [total]


def by_depth(measured: Sequence[GradientSamples], width: int = 100) -> Table:
  """One row per depth: the gradient at both ends of the stack, and that of the last feed-forward's output kernel.

  Args:
    measured: the measurements, one for each depth.
    width: the width of the terminal. If it is too narrow, the bars are shortened.
  """
  return _first_that_fits([_by_depth(measured, bar_width) for bar_width in BAR_WIDTHS], width)


def _by_depth(measured: Sequence[GradientSamples], bar_width: int) -> Table:
  last = [one.mean(LAST_KERNEL)[-1] for one in measured]
  table = new_table(
    f'{measured[0].model.name}: gradients at initialisation, by depth',
    caption='stream: norm over tokens, sqrt(n sum_t |g_t|^2), in nats per unit; kernel: Frobenius norm of the gradient '
    f'averaged over the batch; ±: 95% interval over {len(measured[0].samples["loss"])} batches, '
    f'each with its own initial parameters\n{format_depth_exponent(measured)}',
  )
  table.add_column('layers', justify='right', overflow='fold')
  for name in ('stream,\nfirst layer', 'stream,\noutput', 'first over\noutput', 'last feed-\nforward\nkernel'):
    table.add_column(name, justify='right', overflow='fold')
  if bar_width:
    table.add_column('', no_wrap=True)
  for one in measured:
    first, output = one.samples['total'][:, 0, 0], one.samples['output']
    table.add_row(
      str(one.layers),
      format_number(first.mean(), statistics.half_width(first)),
      format_number(output.mean(), statistics.half_width(output)),
      format_number((first / output).mean(), statistics.half_width(first / output)),
      format_number(one.mean(LAST_KERNEL)[-1], one.half_width(LAST_KERNEL)[-1]),
      *([text_bar(one.mean(LAST_KERNEL)[-1], min(last), max(last), bar_width)] if bar_width else []),
    )
  return table


def depth_exponent(measured: Sequence[GradientSamples], metric: str = LAST_KERNEL) -> tuple[float, float]:
  """The exponent of a metric of the last layer as a power of the depth.

  A line is fitted to the logarithms by least squares for each batch, which has its own initial parameters.

  Returns:
    The mean of the slopes, and the half-width of its 95% Student interval.
  """
  norms = np.array([one.samples[metric][:, -1] for one in measured]).T  # (batch, depth)
  slopes = statistics.power_law_exponent([one.layers for one in measured], norms)
  return float(slopes.mean()), float(statistics.half_width(slopes))


def format_depth_exponent(measured: Sequence[GradientSamples]) -> str:
  """The exponent of the last feed-forward kernel as text."""
  if len(measured) < 2:
    return 'no exponent: it needs several depths'
  slope, half_width = depth_exponent(measured)
  return f'last feed-forward kernel: depth^({slope:+.3f} ± {half_width:.3f})'


def format_number(value, half_width=None) -> str:
  """Formats a number with three significant digits, followed by the half-width of its interval."""
  text = f'{value:.3g}' if 1e-3 <= abs(value) < 1e4 or value == 0 else f'{value:.1e}'
  return text if half_width is None or not math.isfinite(half_width) else f'{text} ±{half_width:.1g}'


def text_bar(value: float, low: float, high: float, width: int) -> str:
  """A bar of up to `width` characters in steps of an eighth; it starts at 0, or is logarithmic if the range is wide."""
  if not math.isfinite(value) or value <= 0:
    return ''
  if _logarithmic(low, high):
    share = (math.log(value / low) / math.log(high / low) * (width - 1) + 1) / width
  else:
    share = value / high
  eighths = max(1, round(share * width * 8))
  return '█' * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _logarithmic(low: float, high: float) -> bool:
  return 0 < low < high / LOGARITHMIC_FROM
