"""Figures of one run over training, drawn only from its log: heat maps of layer against step, and update ratios."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lab.analysis import results
from lab.analysis.stream_gradients import by_stack_position
from lab.figures.figure_style import GREY, CaptionedFigure, new_figure, styled
from training.metric_names import PARAM_NORM, STREAM_GRADIENT, STREAM_RMS, UPDATE_NORM, MetricName

# The heat maps: metric and part in the log -> title and kind of colour scale.
HEAT_MAPS = {
  (STREAM_GRADIENT, 'total'): ('gradient, total', 'norm'),
  (STREAM_RMS, ''): ('stream RMS', 'norm'),
  (STREAM_GRADIENT, 'skip'): ('gradient, skip path', 'norm'),
  (STREAM_GRADIENT, 'branch'): ('gradient, branch', 'norm'),
  (STREAM_GRADIENT, 'cosine'): ('cosine of skip and branch', 'cosine'),
  (STREAM_GRADIENT, 'gain'): ('gain, input over output', 'gain'),
}
WIDEST = 1e9  # the range of a logarithmic colour scale


def over_training(directory: Path, run: str) -> list[CaptionedFigure]:
  """Draws a run's gradients and updates against the training step.

  Args:
    directory: the run directory.
    run: the name of the run in titles and file names.
  """
  metrics = results.load_metrics(directory)
  figures = heat_maps(metrics), update_ratio(metrics)
  suffix = run.replace('/', '_')
  return [
    dataclasses.replace(figure, name=f'{figure.name}_{suffix}', title=f'{run}: {figure.title}') for figure in figures
  ]


@styled
def heat_maps(metrics: pd.DataFrame) -> CaptionedFigure:
  """Heat maps of layer against training step, one panel per metric."""
  name, title = 'over_training', 'Gradients over training'
  matrices = {metric: by_stack_position(metrics, *metric) for metric in HEAT_MAPS}
  matrices = {metric: matrix for metric, matrix in matrices.items() if matrix.size}
  if not matrices:
    return CaptionedFigure(name, title, 'Not drawn: the run logged no stream gradient (inspect.level=off).', None)
  figure = new_figure(6.0)
  panels = figure.subplots(3, 2, sharex=True, sharey=True)
  for axes, (metric, matrix) in zip(panels.ravel(), matrices.items(), strict=False):
    panel_title, kind = HEAT_MAPS[metric]
    _draw_matrix(figure, axes, matrix, kind)
    axes.set_title(panel_title)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
  figure.supxlabel('training step', fontsize=9)
  figure.supylabel('layer (whole: attention, half: feed-forward)', fontsize=9)
  caption = (
    'At the input of each sublayer, at the logged steps. Norms over tokens, sqrt(n sum_t |g_t|^2) with n the scored '
    'tokens, in nats per unit of the stream; the RMS of the stream is after the sublayer. Norms and gains have a '
    'logarithmic colour scale of at most nine decades. White: 0 or not finite.'
  )
  return CaptionedFigure(name, title, caption, figure)


@styled
def update_ratio(metrics: pd.DataFrame) -> CaptionedFigure:
  """The norm of a layer's update divided by the norm of its parameters, against the training step."""
  name, title = 'update_ratio', 'Update-to-parameter ratio by layer'
  squares = _by_layer(metrics)
  if squares is None:
    return CaptionedFigure(name, title, 'Not drawn: the run logged no parameter norms (inspect.level=off).', None)
  ratio = np.sqrt(squares[UPDATE_NORM] / squares[PARAM_NORM])
  figure = new_figure(2.8)
  axes = figure.subplots()
  colours = colormaps['viridis']
  layers = len(ratio.columns)
  for layer in ratio.columns:
    axes.plot(ratio.index, ratio[layer].where(ratio[layer] > 0), lw=1, color=colours(layer / max(1, layers - 1) * 0.92))
  axes.axhline(1e-3, color=GREY, lw=0.8, ls=(0, (4, 3)))
  axes.set(yscale='log', xlabel='training step', ylabel='update norm / parameter norm')
  scale = ScalarMappable(Normalize(0, max(1, layers - 1)), colours)
  figure.colorbar(scale, ax=axes, label='layer', ticks=MaxNLocator(5, integer=True))
  caption = (
    'For all parameters of a block together: the Euclidean norm of the update divided by that of the parameters, at '
    'the logged steps. Dashed: 1e-3, a rule of thumb.'
  )
  return CaptionedFigure(name, title, caption, figure)


def _draw_matrix(figure: Figure, axes: Axes, matrix: pd.DataFrame, kind: str) -> None:
  values = matrix.to_numpy().T
  x, y = _edges(matrix.index.to_numpy(float)), _edges(matrix.columns.to_numpy(float))
  positive = values[np.isfinite(values) & (values > 0)]
  colours: dict[str, Any]
  if kind == 'cosine':
    colours = {'norm': Normalize(-1, 1), 'cmap': 'RdBu'}
  elif not positive.size:
    axes.text(0.5, 0.5, 'all 0', transform=axes.transAxes, ha='center', va='center')
    return
  elif kind == 'gain':
    span = min(max(positive.max(), 1 / positive.min(), 1.01), WIDEST)
    colours = {'norm': LogNorm(1 / span, span), 'cmap': 'PuOr'}
  else:
    low, high = max(positive.min(), positive.max() / WIDEST), positive.max()
    colours = {'norm': LogNorm(low * 0.999, high * 1.001), 'cmap': 'viridis'}
  if kind != 'cosine':
    values = np.where(values > 0, values, np.nan)
  mesh = axes.pcolormesh(x, y, values, rasterized=True, **colours)
  axes.grid(visible=False)
  figure.colorbar(mesh, ax=axes, pad=0.02)


def _edges(centres: np.ndarray) -> np.ndarray:
  """The edges of the cells with these centres."""
  if len(centres) == 1:
    return np.array([centres[0] - 0.5, centres[0] + 0.5])
  middles = (centres[1:] + centres[:-1]) / 2
  return np.concatenate([[2 * centres[0] - middles[0]], middles, [2 * centres[-1] - middles[-1]]])


def _by_layer(metrics: pd.DataFrame) -> dict[str, pd.DataFrame] | None:
  """The squared norms of each block's update and parameters, by step; None if they were not logged."""
  squares: dict[str, dict[int, pd.Series]] = {UPDATE_NORM: {}, PARAM_NORM: {}}
  for column in metrics:
    name = MetricName.parse(column)
    if name.measure in squares and name.layer is not None:
      layers = squares[name.measure]
      layers[name.layer] = layers.get(name.layer, 0) + metrics[column] ** 2
  if not squares[UPDATE_NORM]:
    return None
  return {kind: pd.DataFrame(layers).sort_index(axis=1).dropna(how='all') for kind, layers in squares.items()}
