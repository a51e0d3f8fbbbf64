"""Figures of measured gradients: the two paths by layer, norms by layer, and norms against the number of layers."""

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
from lab.inspect.connection_figures import who_reads_whom
from lab.inspect.gradient_table import LAST_KERNEL, OUTPUT_KERNEL, depth_exponent
from lab.inspect.gradients import GradientSamples
from training.metric_names import GRAD_NORM, SEQUENCE_GRAD_NORM, MetricName

TOKEN_NORM = 'nats per unit of the stream; norm over tokens, sqrt(n sum_t |g_t|^2) with n the scored tokens'
UNITS = {
  'total, skip, branch, output': TOKEN_NORM,
  GRAD_NORM: 'nats per unit of the parameter; Frobenius norm of the gradient averaged over the batch',
  SEQUENCE_GRAD_NORM: 'nats per unit of the parameter; root mean square over sequences of the gradient norm of each',
  'attention_entropy, loss': 'nats',
}
STREAM_LABEL = 'stream gradient\n(nats per unit,\nnorm over tokens)'
PATHS = {  # the total is drawn first and wider, so that it remains visible behind a path that equals it
  'total': {'color': '#B0B0B0', 'lw': 3},
  'skip': {'color': COLOURS[1], 'dashes': (4, 1.5), 'lw': 1.4},
  'branch': {'color': COLOURS[0], 'dashes': (1.2, 1.2), 'lw': 1.4},
}
COLUMNS = 3
AXIS_FLOOR = 1e-12  # relative to the largest norm: the lowest value that the axis can show


def draw_all(measured: Sequence[GradientSamples]) -> list[CaptionedFigure]:
  """Draws all figures of these measurements.

  `norm_by_depth` only for one config at several depths; `who_reads_whom` only for designs with several arrays.
  """
  names = {one.model.name for one in measured}
  figures = [two_paths(measured), norm_by_layer(measured)]
  if len(measured) > 1 and len(names) == 1 and not any(one.model.directory for one in measured):
    figures.append(norm_by_depth(measured))
  return [*figures, *who_reads_whom(measured)]


@styled
def two_paths(measured: Sequence[GradientSamples]) -> CaptionedFigure:
  """The gradient through the skip path, that through the branch, and their sum; below, the cosine between the two."""
  rows = math.ceil(len(measured) / COLUMNS)
  columns = math.ceil(len(measured) / rows)
  figure = new_figure(0.5 + 2.9 * rows)
  panels = figure.subplots(2 * rows, columns, squeeze=False, sharex='col' if rows == 1 else False,
                           height_ratios=[2, 1] * rows)  # fmt: skip
  for index, one in enumerate(measured):
    norm_axes, cosine_axes = panels[index // columns * 2 : index // columns * 2 + 2, index % columns]
    x = _sublayer_positions(one)
    for name, style in PATHS.items():
      _plot_with_band(norm_axes, x, one, name, label=name, **style)
    _plot_with_band(cosine_axes, x, one, 'cosine', color=GREY, lw=1)
    norm_axes.set(yscale='log', title=escape_dollars(one.label))
    cosine_axes.set(ylim=(-1.05, 1.05), xlabel=f'layer ({one.layers}: output)')
    cosine_axes.axhline(0, color=GREY, lw=0.6)
    for axes in (norm_axes, cosine_axes):
      axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
      axes.set_xlim(0, one.layers)
    if index % columns == 0:
      norm_axes.set_ylabel(STREAM_LABEL)
      cosine_axes.set_ylabel('cosine of\nskip and branch')
  for index in range(len(measured), rows * columns):
    for axes in panels[index // columns * 2 : index // columns * 2 + 2, index % columns]:
      axes.set_axis_off()
  tops = panels[::2].ravel()[: len(measured)]
  norms = np.concatenate([one.mean(name).ravel() for one in measured for name in PATHS])
  low, high = norms[norms > 0].min() / 1.5, norms.max() * 1.5
  for axes in tops:
    axes.set_ylim(max(low, high * AXIS_FLOOR), high)
    set_log_y_axis(axes)
  zero = (
    '; it is 0 where one of them is 0, which a logarithmic axis cannot show'
    if any(one.has_empty_path for one in measured)
    else ''
  )
  figure.legend(*panels[0, 0].get_legend_handles_labels(), loc='outside lower center', ncols=3)
  return CaptionedFigure(
    'two_paths',
    'The two paths of the gradient',
    f'Gradient of the loss at the input of each attention (whole numbers) and each feed-forward (halves), in '
    f'{TOKEN_NORM}: the part from the skip path, the part from the residual branch, and their sum. Below: the '
    f'cosine between the two parts{zero}. Bands: 95% interval over {measured[0].batches} batches.',
    figure,
  )


@styled
def norm_by_layer(measured: Sequence[GradientSamples]) -> CaptionedFigure:
  """The gradients of the residual stream and of the feed-forward output kernels, by layer."""
  figure = new_figure(2.9 + 0.18 * math.ceil(len(measured) / 2))
  left, right = figure.subplots(1, 2)
  colours = _colours(measured)
  for one, colour in zip(measured, colours, strict=True):
    initial_of_two = one.model.directory is not None and not one.model.step
    style = {'color': colour, 'dashes': (4, 1.5) if initial_of_two else (None, None)}
    x = np.append(_sublayer_positions(one), one.layers)
    total = np.append(one.mean('total').ravel(), one.mean('output'))
    left.plot(x / one.layers, total, label=escape_dollars(one.label), lw=1.3, **style)
    right.plot((np.arange(one.layers) + 0.5) / one.layers, one.mean(LAST_KERNEL), lw=1.3, **style)
  for axes in (left, right):
    axes.set(yscale='log', xlabel='depth (1: output)', xlim=(0, 1))
    set_log_y_axis(axes)
  left.set_ylabel(STREAM_LABEL)
  right.set_ylabel('gradient of the\nfeed-forward output kernel\n(nats per unit,\nnorm of the batch mean)')
  figure.legend(loc='outside lower center', ncols=2)
  return CaptionedFigure(
    'norm_by_layer',
    'Gradient norm by layer',
    f'Left: gradient of the residual stream, in {TOKEN_NORM}. Right: Frobenius norm of the gradient of each '
    f'feed-forward output kernel, averaged over the batch. Means over {measured[0].batches} batches.',
    figure,
  )


@styled
def norm_by_depth(measured: Sequence[GradientSamples]) -> CaptionedFigure:
  """The gradient of the last feed-forward kernel against the number of layers (Xiong et al. 2020, theorem 1)."""
  figure = new_figure(3.2)
  axes = figure.subplots()
  depths = np.array([one.layers for one in measured])
  kinds = {GRAD_NORM: 'norm of the batch mean', SEQUENCE_GRAD_NORM: 'rms over sequences of the norm'}
  for (kind, description), colour, marker in zip(kinds.items(), COLOURS[1::-1], 'os', strict=True):
    name = str(MetricName(kind, site=OUTPUT_KERNEL))
    slope, half = depth_exponent(measured, name)
    mean, width = (
      np.array([f(name)[-1] for f in fs]) for fs in zip(*((o.mean, o.half_width) for o in measured), strict=True)
    )
    fit = np.exp(np.log(mean).mean() + slope * (np.log(depths) - np.log(depths).mean()))
    axes.errorbar(depths, mean, width, color=colour, marker=marker, ms=4, lw=0, elinewidth=1, capsize=2)
    axes.plot(depths, fit, color=colour, lw=1.2, label=f'{description}: depth^({slope:+.2f} ± {half:.2f})')
  axes.set(
    xscale='log',
    yscale='log',
    xlabel='layers',
    ylabel='gradient of the last\nfeed-forward output kernel\n(nats per unit)',
  )
  axes.set_xticks(depths, [str(depth) for depth in depths])
  axes.xaxis.set_minor_locator(NullLocator())
  set_log_y_axis(axes)
  figure.legend(loc='outside lower center', ncols=1)
  return CaptionedFigure(
    'norm_by_depth',
    'Gradient of the last layer by depth',
    f'{measured[0].model.name} at initialisation: gradient of the output kernel of the last feed-forward, with a line '
    'fitted to the logarithms. Shown: Frobenius norm of the gradient averaged over the batch (as in Xiong et al. '
    '2020), and root mean square over sequences of the gradient norm of each. '
    f'Bars: 95% interval over {measured[0].batches} batches, each with its own initial parameters.',
    figure,
  )


def _colours(measured: Sequence[GradientSamples]) -> list[str]:
  """A colour for each model (that of its variant, if declared by an experiment) or, for a single config, each depth."""
  names = list(dict.fromkeys(one.model.name for one in measured))
  known: dict[str, str] = {}
  for one in measured:
    if one.model.directory is not None:
      directory = one.model.directory.absolute()
      experiment, variant = find_experiment_or_none(directory.parent.parent.name), directory.parent.name
      styles = variant_styles(experiment) if experiment else {}
      if variant in styles:
        known[one.model.name] = styles[variant].colour
  others = itertools.cycle(colour for colour in COLOURS if colour not in known.values())
  if len(names) == 1 and not known:
    return [next(others) for _ in measured]
  chosen = {name: known[name] if name in known else next(others) for name in names}
  return [chosen[one.model.name] for one in measured]


def _sublayer_positions(one: GradientSamples) -> np.ndarray:
  return np.arange(0, one.layers, 0.5)


def _plot_with_band(axes: Axes, x: np.ndarray, one: GradientSamples, name: str, **style) -> None:
  mean, half = one.mean(name).ravel(), one.half_width(name).ravel()
  mean = np.where(mean > 0, mean, np.nan) if name != 'cosine' else mean
  axes.fill_between(x, mean - half, mean + half, color=style['color'], alpha=0.2, lw=0)
  axes.plot(x, mean, **style)
