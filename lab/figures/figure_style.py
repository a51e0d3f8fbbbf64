"""The style of every figure: sizes, colours by variant, labels at the ends of lines, file formats."""

import dataclasses
import io
import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lab.core.experiment import Experiment
from training.files import write_atomically

Summary = Mapping[str, Any]  # from lab.analysis.summary

WIDTH = 4.8  # inches; 9-point text stays readable when scaled to a 3.4 inch journal column
GREY = '#6B6B6B'
FAINT = '#E4E4E4'

BLACK = '#1A1A1A'
# Okabe & Ito 2008, distinguishable with every common kind of colour blindness; without black, the baseline's colour,
# and yellow, too light for a line on white.
COLOURS = ('#D55E00', '#0072B2', '#009E73', '#CC79A7', '#E69F00', '#56B4E9')
# Colours of variants that several experiment files share; the same as those that block.py's variants get.
VARIANT_COLOURS = {
  'pre': BLACK, 'post': '#D55E00', 'relu': '#0072B2', 'no_residual': '#009E73', 'sandwich': '#CC79A7',
  'none': '#E69F00', 'deepnorm': '#56B4E9',
}  # fmt: skip
_DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1.2, 1.2))
_MARKERS = 'osD^vPhp<>*'

STYLE: dict[Any, Any] = {  # matplotlib.rcParams
  'font.size': 9,
  'axes.labelsize': 9,
  'axes.titlesize': 9,
  'xtick.labelsize': 8,
  'ytick.labelsize': 8,
  'legend.fontsize': 8,
  'legend.frameon': False,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.linewidth': 0.6,
  'xtick.major.width': 0.6,
  'ytick.major.width': 0.6,
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.color': FAINT,
  'grid.linewidth': 0.5,
  'axes.unicode_minus': True,
  'pdf.fonttype': 42,  # embeds text as text, as journals require
  'svg.hashsalt': 'blocklab',  # with no date in the file, the same numbers give the same bytes
  'figure.constrained_layout.h_pad': 0.03,
  'figure.constrained_layout.w_pad': 0.03,
}

FORMATS: dict[str, dict[str, Any]] = {
  'png': {'dpi': 200},
  'pdf': {'metadata': {'CreationDate': None}},
  'svg': {'metadata': {'Date': None}},
}

logging.getLogger('fontTools').setLevel(logging.WARNING)  # it logs every glyph embedded in a PDF

_DEFAULTS: dict[Any, Any] = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != 'backend'}

styled = matplotlib.rc_context({**_DEFAULTS, **STYLE})  # a decorator; overrides the user's matplotlibrc entirely


@dataclasses.dataclass(frozen=True)
class CaptionedFigure:
  """A figure with its title and caption.

  Attributes:
    name: the name of its files, without suffix.
    title: its title on the page.
    caption: what it shows.
    figure: None if the logs lack the data for it; the caption then says what is missing.
  """

  name: str
  title: str
  caption: str
  figure: Figure | None


@dataclasses.dataclass(frozen=True)
class VariantStyle:
  """The style of a variant in every figure of its experiment."""

  colour: str
  dashes: tuple[float, ...]
  marker: str

  @property
  def line(self) -> dict[str, Any]:
    """The keyword arguments of `Axes.plot` for a line in this style."""
    return {'color': self.colour, 'dashes': self.dashes or (None, None)}


@dataclasses.dataclass(frozen=True)
class LineLabel:
  """A label at the end of a line."""

  height: float
  text: str
  colour: str
  dashes: tuple[float, ...] = ()


def variant_styles(experiment: Experiment) -> dict[str, VariantStyle]:
  """The style of each declared variant; the baseline is always black."""
  lines = itertools.cycle(itertools.product(_DASHES, COLOURS))
  markers = itertools.cycle(_MARKERS)
  styles = {experiment.baseline: VariantStyle(BLACK, (), next(markers))}
  for name in list(experiment.variants)[1:]:
    dashes, colour = next(lines)
    styles[name] = VariantStyle(colour, dashes, next(markers))
  return styles


def new_figure(height: float) -> Figure:
  """An empty figure of the standard width, in inches; independent of pyplot."""
  figure = Figure(figsize=(WIDTH, height), layout='constrained')
  FigureCanvasAgg(figure)
  return figure


def missing_glyphs(text: str) -> str:
  """The characters of a text that matplotlib's default font lacks and would draw as boxes."""
  font = font_manager.get_font(font_manager.findfont('DejaVu Sans'))
  return ''.join(character for character in text if not font.get_char_index(ord(character)))


def escape_dollars(name: str) -> str:
  """Escapes the dollar signs of a name, which matplotlib would otherwise read as a formula."""
  return name.replace('$', r'\$')


@styled
def save(figure: Figure, directory: Path, name: str) -> list[Path]:
  """Writes <name>.png, .pdf and .svg; drawing the same numbers again gives the same bytes."""
  paths = []
  for suffix, options in FORMATS.items():
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, **options)
    paths.append(write_atomically(directory / f'{name}.{suffix}', buffer.getvalue()))
    figure.set_layout_engine('none')  # the layout does not change between formats
  return paths


def set_log_y_axis(axes: Axes) -> None:
  """Makes a logarithmic y axis span at least a factor of ten, with plain tick labels. Plot the data first."""
  low, high = axes.get_ylim()
  if high < 10 * low:
    middle = math.sqrt(low * high)
    low, high = middle / math.sqrt(10), middle * math.sqrt(10)
    axes.set_ylim(low, high)
  axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
  axes.yaxis.set_minor_locator(NullLocator())
  if high < 1e4 and low > 1e-4:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:g}'))


def spread_apart(positions: Sequence[float], gap: float, lowest: float = -math.inf) -> list[float]:
  """Moves positions as little as possible so that neighbours are `gap` apart and none is below `lowest`."""

  def start(group: list[int]) -> float:
    return max(lowest, sum(positions[index] for index in group) / len(group) - gap * (len(group) - 1) / 2)

  groups: list[list[int]] = []  # touching neighbours move together, centred on the mean of their positions
  for index in sorted(range(len(positions)), key=lambda i: positions[i]):
    groups.append([index])
    while len(groups) > 1 and start(groups[-1]) < start(groups[-2]) + gap * len(groups[-2]):
      groups[-2:] = [groups[-2] + groups[-1]]
  moved = [0.0] * len(positions)
  for group in groups:
    for rank, index in enumerate(group):
      moved[index] = start(group) + gap * rank
  return moved


def label_lines(figure: Figure, axes: Axes, labels: Sequence[LineLabel]) -> None:
  """Writes labels to the right of the axes without overlap, each joined to its height. The limits must be final."""
  low, high = axes.get_ylim()
  heights = [(label.height - low) / (high - low) for label in labels]
  inches = figure.get_size_inches()[1] * 0.78  # the approximate height of the axes
  lines = max((label.text.count('\n') + 1 for label in labels), default=1)
  positions = spread_apart(heights, 0.155 * lines / inches, lowest=0.0)
  for label, height, position in zip(labels, heights, positions, strict=True):
    axes.plot(
      [1.0, 1.04, 1.08], [height, position, position], transform=axes.transAxes, color=label.colour, lw=1,
      dashes=label.dashes or (None, None), clip_on=False,
    )  # fmt: skip
    axes.text(1.1, position, label.text, transform=axes.transAxes, color=label.colour, fontsize=8, va='center')
