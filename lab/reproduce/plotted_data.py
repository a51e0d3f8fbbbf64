"""Extracts the plotted numbers from a figure, for the JSON file that is saved next to it."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from lab.reproduce.record import to_json


def plotted_data(figure: Figure) -> list[dict[str, Any]]:
  """The title, axis labels, lines, bars, areas and images of each panel, in data coordinates."""
  return [_panel_data(axes) for axes in figure.axes]


def _panel_data(axes: Axes) -> dict[str, Any]:
  panel: dict[str, Any] = {'title': axes.get_title(), 'x': axes.get_xlabel(), 'y': axes.get_ylabel()}
  # The lines of labels next to the axes have other coordinates.
  lines = [line for line in axes.lines if line.get_transform() == axes.transData]
  panel['lines'] = [
    {'name': line.get_gid() or line.get_label(), 'x': to_json(line.get_xdata()), 'y': to_json(line.get_ydata())}
    for line in lines
  ]
  bars = [bar for container in axes.containers for bar in getattr(container, 'patches', [])]
  panel['bars'] = [
    {'x': to_json(bar.get_x() + bar.get_width() / 2), 'height': to_json(bar.get_height())} for bar in bars
  ]
  polygons = [patch for patch in axes.patches if isinstance(patch, Polygon)]
  paths = [path for area in axes.collections for path in area.get_paths()]
  panel['areas'] = [to_json(points) for points in [*(p.get_xy() for p in polygons), *(path.vertices for path in paths)]]
  panel['images'] = [to_json(image.get_array()) for image in axes.images]
  return panel
