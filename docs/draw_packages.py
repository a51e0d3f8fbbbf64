"""Draws docs/packages.svg: the packages with their imports, and the data flow with the function of every stage.

tests/docs/test_draw_packages.py compares the packages and arrows with the imports in the code.

Command: python -m docs.draw_packages
"""

from pathlib import Path
from typing import NamedTuple

from docs.svg import ACCENT, BLACK, GREY, box, document, line, text

PICTURE = Path(__file__).with_name('packages.svg')
WIDTH, HEIGHT = 900, 715
ROW, FIRST_ROW = 62, 190  # pixels between rows, y of the first
COMMAND, LAB, BASE, DECLARED = '#F2F2F2', '#D3E6F3', '#FBE3B5', '#DDF0E5'  # fills


class Package(NamedTuple):
  """A box: its centre (pixels, rows from the top), its width, what it contains, and its fill."""

  x: float
  row: float
  width: float
  contents: str
  fill: str


PACKAGES = {
  'train.py': Package(280, 0, 110, '', COMMAND),
  'reproduce.py': Package(440, 0, 120, '', COMMAND),
  'inspect_gradients.py': Package(770, 0, 180, '', COMMAND),
  'experiments': Package(590, 0, 120, 'declarations', DECLARED),
  'lab/reproduce': Package(460, 1, 190, 'claims and their verdicts', LAB),
  'lab/commands': Package(280, 2, 190, 'run, tune, compare, status', LAB),
  'lab/inspect': Package(770, 3, 190, 'gradients by layer and path', LAB),
  'lab/report': Package(480, 3, 190, 'tables, report.html', LAB),
  'lab/benchmark': Package(100, 4, 160, 'speed and memory', LAB),
  'lab/figures': Package(540, 4, 190, 'matplotlib figures', LAB),
  'lab/launch': Package(280, 5, 190, 'worker processes, Slurm', LAB),
  'lab/analysis': Package(540, 5, 190, 'statistics, verdicts', LAB),
  'lab/cli': Package(100, 6, 160, 'flags, signals, console', LAB),
  'lab/core': Package(440, 6, 190, 'experiments, planned runs', LAB),
  'configs': Package(770, 6, 190, 'scales, config flags', DECLARED),
  'training': Package(442, 7, 846, 'data, optimizer, step, metrics, checkpoints, run directories', BASE),
  'model': Package(442, 8, 846, 'init(config, key), apply(config, params, tokens, taps)', BASE),
}

# Who imports whom. An import that follows from two or more arrows has no arrow of its own.
ARROWS = {
  ('train.py', 'lab/commands'), ('reproduce.py', 'lab/reproduce'), ('inspect_gradients.py', 'lab/inspect'),
  ('experiments', 'lab/reproduce'), ('lab/reproduce', 'lab/commands'),
  ('lab/commands', 'lab/launch'), ('lab/commands', 'lab/report'), ('lab/commands', 'configs'),
  ('lab/inspect', 'lab/figures'), ('lab/inspect', 'lab/cli'), ('lab/inspect', 'configs'),
  ('lab/benchmark', 'lab/launch'), ('lab/report', 'lab/figures'), ('lab/report', 'lab/cli'),
  ('lab/figures', 'lab/analysis'), ('lab/launch', 'lab/cli'), ('lab/launch', 'lab/core'), ('lab/analysis', 'lab/core'),
  ('lab/cli', 'training'), ('lab/core', 'training'), ('configs', 'training'), ('training', 'model'),
}  # fmt: skip

# Arrows that go around boxes: the points of each, in pixels and rows.
ROUTES = {
  ('lab/commands', 'configs'): ((375, 2), (655, 2), (655, 6), (674, 6)),
  ('lab/report', 'lab/cli'): ((410, 3.31), (410, 5.5), (130, 5.5), (130, 5.68)),
  ('lab/inspect', 'lab/cli'): ((695, 3.31), (695, 5.5), (130, 5.5), (130, 5.68)),
}

# The data flow: stage, the function that produces it.
FLOW = (
  ('flags', 'configs.flags.config_changes'),
  ('config', 'lab.core.plan.plan_runs'),
  ('tokens', 'training.data.batches.train_batches'),
  ('model', 'model.transformer.apply'),
  ('step', 'training.step.make_train_step'),
  ('metrics', 'training.metrics.named_metrics'),
  ('results', 'lab.analysis.results.load'),
  ('figures', 'lab.figures.experiment_figures.draw_all'),
)


def flow() -> str:
  """The stages from left to right, each with its module and function."""
  parts = [text(20, 24, 'Data flow', 'bold')]
  for k, (stage, function) in enumerate(FLOW):
    x = 20 + 109 * k
    module, _, name = function.rpartition('.')
    parts.append(box(x, 56, 86, 28, stage, '#FFFFFF', 'bold'))
    if k:
      parts.append(line(f'{x - 23},56 {x - 1},56', ACCENT, arrow=True, dashed=True))
    lines = (*module.rsplit('.', 1), name)
    parts += [text(x + 43, 86 + 14 * row, part, 'small middle') for row, part in enumerate(lines)]
  return ''.join(parts)


def place(name: str) -> tuple[float, float]:
  """The centre of a package's box."""
  return PACKAGES[name].x, FIRST_ROW + ROW * PACKAGES[name].row


def arrow(above: str, below: str) -> str:
  """A line from the lower edge of one box to the upper edge of another, or along its route."""
  if (above, below) in ROUTES:
    points = ' '.join(f'{x:g},{FIRST_ROW + ROW * row:g}' for x, row in ROUTES[above, below])
    return line(points, GREY, arrow=True)
  (x, y), (end_x, end_y) = place(above), place(below)
  half, end_half = PACKAGES[above].width / 2 - 12, PACKAGES[below].width / 2 - 12
  start = min(max(end_x, x - half), x + half)
  end = min(max(start, end_x - end_half), end_x + end_half)
  return line(f'{start:g},{y + 19:g} {end:g},{end_y - 20:g}', BLACK, arrow=True)


def package(name: str) -> str:
  """A box with a name and what the package contains."""
  (x, y), one = place(name), PACKAGES[name]
  if not one.contents:
    return box(x - one.width / 2, y, one.width, 38, name, one.fill, 'bold')
  rest = box(x - one.width / 2, y, one.width, 38, '', one.fill)
  return rest + text(x, y - 2, name, 'bold middle') + text(x, y + 12, one.contents, 'small middle')


def picture() -> str:
  """The whole drawing, as SVG."""
  title = text(20, 150, 'Packages: an arrow means "imports"', 'bold')
  arrows = [arrow(*pair) for pair in sorted(ARROWS)]
  return document(WIDTH, HEIGHT, [flow(), title, *arrows, *map(package, PACKAGES)])


if __name__ == '__main__':
  PICTURE.write_text(picture(), 'utf8')
