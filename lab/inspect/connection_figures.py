"""The figure of a design with several streams or sources: with which weights each sublayer reads, mixes and writes."""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from lab.figures.figure_style import CaptionedFigure, escape_dollars, new_figure, styled
from lab.inspect.gradients import GradientSamples
from training.metric_names import CONNECTION_WEIGHTS

LABELS = {'reading': 'source read', 'mixing': 'new stream', 'writing': 'stream written'}


def who_reads_whom(measured: Sequence[GradientSamples]) -> list[CaptionedFigure]:
  """A figure of the weights of these models, by sublayer; none if no design has any."""
  panels = [(one, name) for one in measured for name in CONNECTION_WEIGHTS if name in one.samples]
  return [_draw(panels)] if panels else []


@styled
def _draw(panels: Sequence[tuple[GradientSamples, str]]) -> CaptionedFigure:
  heights = [_image(one, name).shape[0] for one, name in panels]
  figure = new_figure(0.6 + sum(0.6 + 0.12 * height for height in heights))
  rows = figure.subplots(len(panels), 1, squeeze=False, height_ratios=[height + 3 for height in heights])[:, 0]
  for axes, (one, name) in zip(rows, panels, strict=True):
    image = _image(one, name)
    bound = np.nanmax(np.abs(image))
    shown = axes.imshow(
      image, cmap='RdBu_r', vmin=-bound, vmax=bound, aspect='auto', interpolation='nearest',
      extent=(0, one.layers, len(image) + 0.5, 0.5), gid=f'{one.label}: {name}',
    )  # fmt: skip
    axes.set(title=f'{escape_dollars(one.label)}: {name}', ylabel=LABELS[name])
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.grid(visible=False)
    figure.colorbar(shown, ax=axes, pad=0.01)
  rows[-1].set_xlabel('layer')
  return CaptionedFigure(
    'who_reads_whom',
    'Who reads whom',
    'The weights by which each sublayer connects the arrays of the residual state, from the first sublayer to the '
    f'last, attention and feed-forward in turn; means over the tokens of {panels[0][0].batches} batches. Reading: the '
    'weight of each stream or earlier output in the input of the branch. Mixing: for each sublayer the matrix from the '
    'old streams (columns) to the new ones (rows). Writing: the weight of the output of the branch in each stream.',
    figure,
  )


def _image(one: GradientSamples, name: str) -> np.ndarray:
  """The weights with a column for each sublayer or, for matrices, n columns."""
  weights = one.mean(name)  # (L, 2, sources) or (L, 2, n, n)
  flat = weights.reshape(-1, *weights.shape[2:])
  return flat.T if flat.ndim == 2 else np.concatenate(list(flat), 1)
