"""Figures of a run over training, drawn from its log."""

import math
from pathlib import Path

import numpy as np
import pytest

from lab.figures import figure_style, training_figures
from training.run_files.metrics_log import MetricsLog


def write_log(directory: Path, steps=(1, 10, 20, 30)) -> None:
  """Writes a log of a model of three layers, with values that depend on layer, sublayer and step."""
  with MetricsLog(directory) as log:
    for step in steps:
      row = {'train/loss': 1.0}
      for layer in range(3):
        for k, sublayer in enumerate(('attention', 'feed_forward')):
          site = f'block_{layer:02d}/{sublayer}'
          row |= {f'stream_gradient/{site}/{part}': 1 + layer + k / 2 for part in ('total', 'skip', 'branch', 'gain')}
          row |= {f'stream_gradient/{site}/cosine': 0.5, f'stream_rms/{site}': float(step)}
        for name, size in (('attention/query', 3.0), ('feed_forward/up', 4.0)):
          row |= {f'param_norm/block_{layer:02d}/{name}': size, f'update_norm/block_{layer:02d}/{name}': size / step}
      log.write(step, row)


def test_one_heat_map_for_each_metric(tmp_path):
  write_log(tmp_path)
  figures = {figure.name: figure for figure in training_figures.over_training(tmp_path, 'post_norm')}
  panels = {axes.get_title(): axes for axes in figures['over_training_post_norm'].figure.axes if axes.get_title()}
  assert len(panels) == 6
  values = panels['gradient, total'].collections[0].get_array()
  np.testing.assert_array_equal(values, np.repeat([[1, 1.5, 2, 2.5, 3, 3.5]], 4, 0).T)  # sublayers by steps
  np.testing.assert_array_equal(panels['stream RMS'].collections[0].get_array()[0], [1, 10, 20, 30])


def test_update_ratio_is_over_all_parameters_of_a_block(tmp_path):
  write_log(tmp_path)
  (axes, _) = training_figures.over_training(tmp_path, 'run')[1].figure.axes
  np.testing.assert_allclose(axes.lines[0].get_ydata(), [1, 1 / 10, 1 / 20, 1 / 30])  # 5 / step over 5


@pytest.mark.parametrize('case', ['zero', 'not finite', 'one step'])
def test_degenerate_logs_are_drawn(tmp_path, case):
  write_log(tmp_path, steps=(1,) if case == 'one step' else (1, 10))
  metrics = training_figures.results.load_metrics(tmp_path)
  if case != 'one step':
    metrics.loc[:] = 0.0 if case == 'zero' else math.nan
  for figure in (training_figures.heat_maps(metrics), training_figures.update_ratio(metrics)):
    if figure.figure is not None:
      figure_style.save(figure.figure, tmp_path, figure.name)


def test_a_run_without_gradient_logs_has_an_explanation_instead_of_figures(tmp_path):
  with MetricsLog(tmp_path) as log:
    log.write(1, {'train/loss': 1.0})
  for figure in training_figures.over_training(tmp_path, 'run'):
    assert figure.figure is None
    assert 'inspect.level=off' in figure.caption
