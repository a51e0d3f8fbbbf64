"""The figures of measured gradients: the two paths by depth, norms by depth, and norms against the number of layers."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from lab.core.registry import find_experiment_or_none
from lab.figures.figure_style import (
  COLOURS,
  GREY,
  CaptionedFigure,
  escape_dollars,
  new_figure,
  set_log_y_axis,
  styled,
  variant_styles,
)
from lab.inspect.gradient_table import LAST_KERNEL, OUTPUT_KERNEL, exponent
from lab.inspect.gradients import Measured
from training.metric_names import GRAD_NORM, SEQUENCE_GRAD_NORM, MetricName

OVER_TOKENS = 'nats a unit of the stream; norm over tokens, sqrt(n sum_t |g_t|^2) with n the scored tokens'
UNITS = {
  'total, skip, branch, output': OVER_TOKENS,
  GRAD_NORM: 'nats a unit of the parameter; the gradient averaged over the batch, then its Frobenius norm',
  SEQUENCE_GRAD_NORM: 'the same; the norm of the gradient of each sequence, then the root mean square over sequences',
  'attention_entropy, loss': 'nats',
}
STREAM = 'stream gradient\n(nats a unit,\nnorm over tokens)'
PATHS = {  # the total lies under the others, so that a part that is all of it is seen
  'total': {'color': '#B0B0B0', 'lw': 3},
  'skip': {'color': COLOURS[1], 'dashes': (4, 1.5), 'lw': 1.4},
  'branch': {'color': COLOURS[0], 'dashes': (1.2, 1.2), 'lw': 1.4},
}
COLUMNS = 3
LOWEST = 1e-12  # of the largest norm: what is smaller still is off the axis


def draw_all(measured: Sequence[Measured]) -> list[CaptionedFigure]:
  """Every figure that these measurements give."""
  names = {one.subject.name for one in measured}
  if len(measured) > 1 and len(names) == 1 and not any(one.subject.directory for one in measured):
    return [two_paths(measured), norm_by_layer(measured), norm_by_depth(measured)]
  return [two_paths(measured), norm_by_layer(measured)]


@styled
def two_paths(measured: Sequence[Measured]) -> CaptionedFigure:
  """The gradient down the skip path, through the branch, and their sum; under it the cosine between the two."""
  rows = math.ceil(len(measured) / COLUMNS)
  columns = math.ceil(len(measured) / rows)
  figure = new_figure(0.5 + 2.9 * rows)
  panels = figure.subplots(2 * rows, columns, squeeze=False, sharex='col' if rows == 1 else False,
                           height_ratios=[2, 1] * rows)  # fmt: skip
  for index, one in enumerate(measured):
    above, below = panels[index // columns * 2 : index // columns * 2 + 2, index % columns]
    x = _places(one)
    for name, look in PATHS.items():
      _line(above, x, one, name, label=name, **look)
    _line(below, x, one, 'cosine', color=GREY, lw=1)
    above.set(yscale='log', title=escape_dollars(one.label))
    below.set(ylim=(-1.05, 1.05), xlabel=f'layer ({one.layers}: output)')
    below.axhline(0, color=GREY, lw=0.6)
    for axes in (above, below):
      axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
      axes.set_xlim(0, one.layers)
    if index % columns == 0:
      above.set_ylabel(STREAM)
      below.set_ylabel('cosine of\nskip and branch')
  for index in range(len(measured), rows * columns):
    for axes in panels[index // columns * 2 : index // columns * 2 + 2, index % columns]:
      axes.set_axis_off()
  tops = panels[::2].ravel()[: len(measured)]
  norms = np.concatenate([one.mean(name).ravel() for one in measured for name in PATHS])
  low, high = norms[norms > 0].min() / 1.5, norms.max() * 1.5
  for axes in tops:
    axes.set_ylim(max(low, high * LOWEST), high)
    set_log_y_axis(axes)
  figure.legend(*panels[0, 0].get_legend_handles_labels(), loc='outside lower center', ncols=3)
  return CaptionedFigure(
    'two_paths',
    'The two paths of the gradient',
    f'Gradient of the loss where each attention (whole numbers) and each feed-forward (halves) reads the stream, in '
    f'{OVER_TOKENS}: what came down the skip path, what came through the residual branch, and the sum. Below: the '
    f'cosine between the two parts. Bands: 95% interval over {_batches(measured)} batches.',
    figure,
  )


@styled
def norm_by_layer(measured: Sequence[Measured]) -> CaptionedFigure:
  """The gradient in the stream, and of the feed-forward kernels, by layer."""
  figure = new_figure(2.9 + 0.18 * math.ceil(len(measured) / 2))
  left, right = figure.subplots(1, 2)
  colours = _colours(measured)
  for one, colour in zip(measured, colours, strict=True):
    first_of_two = one.subject.directory is not None and not one.subject.step
    look = {'color': colour, 'dashes': (4, 1.5) if first_of_two else (None, None)}
    x = np.append(_places(one), one.layers)
    total = np.append(one.mean('total').ravel(), one.mean('output'))
    left.plot(x / one.layers, total, label=escape_dollars(one.label), lw=1.3, **look)
    right.plot((np.arange(one.layers) + 0.5) / one.layers, one.mean(LAST_KERNEL), lw=1.3, **look)
  for axes in (left, right):
    axes.set(yscale='log', xlabel='depth (1: output)', xlim=(0, 1))
    set_log_y_axis(axes)
  left.set_ylabel(STREAM)
  right.set_ylabel('gradient of the\nfeed-forward output kernel\n(nats a unit,\nbatch mean, then norm)')
  figure.legend(loc='outside lower center', ncols=2)
  return CaptionedFigure(
    'norm_by_layer',
    'Gradient norm by layer',
    f'Left: the gradient in the stream, in {OVER_TOKENS}. Right: that of the output kernel of each feed-forward, '
    f'averaged over the batch, then its Frobenius norm. Means over {_batches(measured)} batches.',
    figure,
  )


@styled
def norm_by_depth(measured: Sequence[Measured]) -> CaptionedFigure:
  """The gradient of the last feed-forward kernel against the number of layers (Xiong et al. 2020, theorem 1)."""
  figure = new_figure(3.2)
  axes = figure.subplots()
  depths = np.array([one.layers for one in measured])
  kinds = {GRAD_NORM: 'batch mean, then norm', SEQUENCE_GRAD_NORM: 'norm of each sequence, then rms'}
  for (kind, words), colour, marker in zip(kinds.items(), COLOURS[1::-1], 'os', strict=True):
    name = str(MetricName(kind, site=OUTPUT_KERNEL))
    slope, half = exponent(measured, name)
    mean, width = (
      np.array([f(name)[-1] for f in fs]) for fs in zip(*((o.mean, o.half_width) for o in measured), strict=True)
    )
    fit = np.exp(np.log(mean).mean() + slope * (np.log(depths) - np.log(depths).mean()))
    axes.errorbar(depths, mean, width, color=colour, marker=marker, ms=4, lw=0, elinewidth=1, capsize=2)
    axes.plot(depths, fit, color=colour, lw=1.2, label=f'{words}: depth^({slope:+.2f} ± {half:.2f})')
  axes.set(
    xscale='log', yscale='log', xlabel='layers', ylabel='gradient of the last\nfeed-forward kernel\n(nats a unit)'
  )
  axes.set_xticks(depths, [str(depth) for depth in depths])
  axes.xaxis.set_minor_locator(NullLocator())
  set_log_y_axis(axes)
  figure.legend(loc='outside lower center', ncols=1)
  return CaptionedFigure(
    'norm_by_depth',
    'The last layer against the depth',
    f'{measured[0].subject.name}, at the initial values: the gradient of the output kernel of the last feed-forward, '
    'and a line fitted to the logarithms. Either the gradient is averaged over the batch and its Frobenius norm taken '
    '(as Xiong et al. 2020 do), or the norm of the gradient of each sequence is taken, and their root mean square. '
    f'Bars: 95% interval over {_batches(measured)} batches, each with initial values of its own.',
    figure,
  )


def _colours(measured: Sequence[Measured]) -> list[str]:
  """One a model, that of its variant where an experiment declares it; one a depth, where there is but one model."""
  names = list(dict.fromkeys(one.subject.name for one in measured))
  known: dict[str, str] = {}
  for one in measured:
    if one.subject.directory is not None:
      directory = one.subject.directory.absolute()
      experiment, variant = find_experiment_or_none(directory.parent.parent.name), directory.parent.name
      styles = variant_styles(experiment) if experiment else {}
      if variant in styles:
        known[one.subject.name] = styles[variant].colour
  others = itertools.cycle(colour for colour in COLOURS if colour not in known.values())
  if len(names) == 1 and not known:
    return [next(others) for _ in measured]
  chosen = {name: known[name] if name in known else next(others) for name in names}
  return [chosen[one.subject.name] for one in measured]


def _places(one: Measured) -> np.ndarray:
  return np.arange(0, one.layers, 0.5)


def _line(axes: Axes, x: np.ndarray, one: Measured, name: str, **look) -> None:
  mean, half = one.mean(name).ravel(), one.half_width(name).ravel()
  mean = np.where(mean > 0, mean, np.nan) if name != 'cosine' else mean
  axes.fill_between(x, mean - half, mean + half, color=look['color'], alpha=0.2, lw=0)
  axes.plot(x, mean, **look)


def _batches(measured: Sequence[Measured]) -> int:
  return len(measured[0].samples['loss'])
