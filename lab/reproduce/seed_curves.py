"""Curves over several seeds: a thin line for each seed and a thick line for their mean."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # matplotlib takes a second to import
  from matplotlib.axes import Axes


def plot_seeds_and_mean(axes: 'Axes', x: Sequence[float] | np.ndarray, values: Any, name: str, colour: str) -> None:
  """Plots values, (seeds, points), against x; only the mean is in the legend."""
  values = np.array(values, float)
  for seed, row in enumerate(values):
    axes.plot(x, row, color=colour, lw=0.6, alpha=0.35, gid=f'{name}, seed {seed}')
  axes.plot(x, values.mean(0), '-o', ms=3, color=colour, lw=1.5, label=name, gid=f'{name}, mean')


def set_depth_axis(axes: 'Axes', depths: Sequence[int]) -> None:
  """Makes the x axis logarithmic in the number of layers, with a tick at each depth."""
  axes.set_xscale('log', base=2)
  axes.set_xticks(depths, [str(depth) for depth in depths])
