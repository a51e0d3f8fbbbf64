"""The numbers in a figure, read back from the figure: what <figure>.json holds beside where they came from."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from lab.reproduce.record import plain


def drawn_numbers(figure: Figure) -> list[dict[str, Any]]:
  """For each panel: the names of its axes, and every line, bar, area and image in it, in data coordinates."""
  return [_panel(axes) for axes in figure.axes]


def _panel(axes: Axes) -> dict[str, Any]:
  panel: dict[str, Any] = {'title': axes.get_title(), 'x': axes.get_xlabel(), 'y': axes.get_ylabel()}
  lines = [line for line in axes.lines if line.get_transform() == axes.transData]  # not the labels beside the axes
  panel['lines'] = [
    {'name': line.get_gid() or line.get_label(), 'x': plain(line.get_xdata()), 'y': plain(line.get_ydata())}
    for line in lines
  ]
  bars = [bar for container in axes.containers for bar in getattr(container, 'patches', [])]
  panel['bars'] = [{'x': plain(bar.get_x() + bar.get_width() / 2), 'height': plain(bar.get_height())} for bar in bars]
  polygons = [patch for patch in axes.patches if isinstance(patch, Polygon)]
  paths = [path for area in axes.collections for path in area.get_paths()]
  panel['areas'] = [plain(points) for points in [*(p.get_xy() for p in polygons), *(path.vertices for path in paths)]]
  panel['images'] = [plain(image.get_array()) for image in axes.images]
  return panel
