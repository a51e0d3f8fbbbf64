"""A user's matplotlib settings neither change a figure nor make drawing fail."""

import os
import subprocess
import sys
from pathlib import Path

import fake_runs
import matplotlib
import pytest

from lab.analysis import load_runs, summary
from lab.figures import experiment_figures, figure_style

PROJECT = Path(__file__).parents[3]
HOSTILE = {
  'text.usetex': True,  # LaTeX is not installed
  'font.family': 'Comic Sans MS',
  'font.size': 31.0,
  'mathtext.fontset': 'stix',
  'axes.prop_cycle': "cycler('color', ['#ff0000', '#00ff00'])",
  'axes.facecolor': '#000000',
  'axes.xmargin': 0.4,
  'axes.labelcolor': '#ffffff',
  'axes.formatter.limits': [-1, 1],
  'axes.formatter.use_locale': True,
  'axes.spines.left': False,
  'lines.linewidth': 9.0,
  'lines.markersize': 20.0,
  'legend.framealpha': 0.1,
  'legend.loc': 'lower left',
  'figure.dpi': 333.0,
  'figure.autolayout': True,
  'figure.facecolor': '#123456',
  'savefig.dpi': 17.0,
  'savefig.format': 'jpg',
  'savefig.bbox': 'tight',
  'savefig.transparent': True,
  'savefig.pad_inches': 2.0,
  'path.sketch': (9, 99, 9),
  'path.simplify': False,
  'agg.path.chunksize': 7,
  'image.cmap': 'jet',
  'image.origin': 'lower',
  'pdf.compression': 0,
  'svg.fonttype': 'none',
  'svg.hashsalt': 'theirs',
  'xtick.direction': 'in',
  'xtick.minor.visible': True,
  'ytick.labelleft': False,
}


def drawn(directory: Path, folder: Path) -> dict[str, bytes]:
  """Draws every figure of an experiment; returns the bytes by file name."""
  found = load_runs.load(fake_runs.BLOCK, directory)
  for picture in experiment_figures.draw_all(found, summary.summarise(found)):
    if picture.figure is not None:
      figure_style.save(picture.figure, folder, picture.name)
  return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_figures_do_not_depend_on_a_matplotlibrc(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', fake_runs.BLOCK)
  plain = drawn(directory, tmp_path / 'plain')
  with matplotlib.rc_context(HOSTILE):
    hostile = drawn(directory, tmp_path / 'hostile')
    assert matplotlib.rcParams['font.size'] == 31  # the user's own settings are unchanged
  assert plain.keys() == hostile.keys()
  assert [name for name in plain if plain[name] != hostile[name]] == []


DRAWS = """
import sys
import {first}
import matplotlib
from lab.figures import figure_style
figure = figure_style.styled(figure_style.new_figure)(1.0)
figure_style.save(figure, __import__('pathlib').Path(sys.argv[1]), 'one')
assert dict(matplotlib.rcParams) == dict(matplotlib.rcParamsDefault), 'a setting comes from the user'
"""


@pytest.mark.parametrize(
  'first', ['lab.figures.figure_style', 'experiments.heads_segment']
)  # the latter imports matplotlib before our modules
def test_importing_matplotlib_reads_no_user_settings(tmp_path, first):
  (tmp_path / 'matplotlibrc').write_bytes(b'text.usetex: True\n# \xff\xfe is not UTF-8\n')
  environment = os.environ | {'PYTHONPATH': str(PROJECT), 'MPLBACKEND': 'nonsense', 'MATPLOTLIBRC': str(tmp_path)}
  command = [sys.executable, '-P', '-c', DRAWS.format(first=first), str(tmp_path / 'out')]
  answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
  assert (answer.returncode, answer.stderr) == (0, '')
  assert len(list((tmp_path / 'out').iterdir())) == 3
