"""Figures of gradients, measured or logged, and the data frame of measurements."""

import math
from pathlib import Path

import fake_gradients
import numpy as np
import pandas as pd
import pytest

from lab.core.registry import find_experiment
from lab.figures import figure_style, training_figures
from lab.inspect import gradient_figures
from lab.inspect.gradients import as_dataframe
from training.run_files.metrics_log import MetricsLog

RUN = Path('/runs/block')


def drawn_lines(axes) -> list[np.ndarray]:
  return [np.asarray(line.get_ydata(), float) for line in axes.lines]


def test_two_paths_plots_the_measured_means():
  one = fake_gradients.measured(3)
  figure = gradient_figures.two_paths([one]).figure
  above, below = figure.axes
  for line, name in zip(above.lines, ('total', 'skip', 'branch'), strict=True):
    assert line.get_label() == name
    np.testing.assert_allclose(line.get_ydata(), one.mean(name).ravel())
    np.testing.assert_array_equal(line.get_xdata(), [0, 0.5, 1, 1.5, 2, 2.5])
  np.testing.assert_allclose(drawn_lines(below)[0], one.mean('cosine').ravel())
  assert 'norm over tokens' in above.get_ylabel()


def test_a_zero_path_does_not_extend_the_logarithmic_axis():
  one = fake_gradients.measured(2)
  one.samples['skip'][:] = 0
  figure = gradient_figures.two_paths([one]).figure
  assert np.isnan(drawn_lines(figure.axes[0])[1]).all()
  assert figure.axes[0].get_ylim()[0] > 0.1


@pytest.mark.parametrize('count', [1, 2, 3, 4, 7])
def test_two_paths_has_a_panel_for_each_model(count):
  picture = gradient_figures.two_paths([fake_gradients.measured(2 + k) for k in range(count)])
  titles = [axes.get_title() for axes in picture.figure.axes]
  assert [title for title in titles if title] == [f'post, {2 + k} layers' for k in range(count)]


def test_norm_by_depth_fits_both_norms():
  measured = [fake_gradients.measured(layers, last=layers**-0.5) for layers in (4, 8, 16)]
  pictures = {picture.name: picture for picture in gradient_figures.draw_all(measured)}
  labels = [line.get_label() for line in pictures['norm_by_depth'].figure.axes[0].lines]
  assert any(label.startswith('norm of the batch mean: depth^(-0.50') for label in labels)
  assert any(label.startswith('rms over sequences of the norm: depth^(') for label in labels)


def test_models_have_the_colours_of_their_variants():
  measured = [
    fake_gradients.measured(2, name=name, step=step, directory=RUN / name / 'seed_0')
    for name in ('baseline', 'post_norm')
    for step in (0, 300)
  ]
  left, right = gradient_figures.norm_by_layer(measured).figure.axes
  styles = figure_style.variant_styles(find_experiment('block'))
  assert [line.get_color() for line in left.lines] == [
    styles[name].colour for name in ('baseline', 'baseline', 'post_norm', 'post_norm')
  ]
  assert [line.get_linestyle() for line in left.lines] == ['--', '-', '--', '-']  # dashed at initialisation
  assert 'norm of the batch mean' in right.get_ylabel()
  assert 'norm over tokens' in left.get_ylabel()


# --- figures of the training log


def write_log(directory: Path, steps=(1, 10, 20, 30)) -> None:
  with MetricsLog(directory) as log:
    for step in steps:
      row = {'train/loss': 1.0}
      for layer in range(3):
        for k, sublayer in enumerate(('attention', 'feed_forward')):
          place = f'block_{layer:02d}/{sublayer}'
          row |= {f'stream_gradient/{place}/{part}': 1 + layer + k / 2 for part in ('total', 'skip', 'branch', 'gain')}
          row |= {f'stream_gradient/{place}/cosine': 0.5, f'stream_rms/{place}': float(step)}
        for name, size in (('attention/query', 3.0), ('feed_forward/up', 4.0)):
          row |= {f'param_norm/block_{layer:02d}/{name}': size, f'update_norm/block_{layer:02d}/{name}': size / step}
      log.write(step, row)


def test_one_heat_map_for_each_metric(tmp_path):
  write_log(tmp_path)
  pictures = {picture.name: picture for picture in training_figures.over_training(tmp_path, 'post_norm')}
  panels = {axes.get_title(): axes for axes in pictures['over_training_post_norm'].figure.axes if axes.get_title()}
  assert len(panels) == 6
  values = panels['gradient, total'].collections[0].get_array()
  np.testing.assert_array_equal(values, np.repeat([[1, 1.5, 2, 2.5, 3, 3.5]], 4, 0).T)  # sublayers by steps
  np.testing.assert_array_equal(panels['stream RMS'].collections[0].get_array()[0], [1, 10, 20, 30])


def test_update_ratio_is_over_all_parameters_of_a_block(tmp_path):
  write_log(tmp_path)
  (axes, _) = training_figures.over_training(tmp_path, 'run')[1].figure.axes
  np.testing.assert_allclose(drawn_lines(axes)[0], [1, 1 / 10, 1 / 20, 1 / 30])  # 5 / step over 5


@pytest.mark.parametrize('odd', ['zero', 'nothing finite', 'one step'])
def test_degenerate_logs_are_drawn(tmp_path, odd):
  write_log(tmp_path, steps=(1,) if odd == 'one step' else (1, 10))
  metrics = training_figures.results.load_metrics(tmp_path)
  if odd != 'one step':
    metrics.loc[:] = 0.0 if odd == 'zero' else math.nan
  for picture in (training_figures.heat_maps(metrics), training_figures.update_ratio(metrics)):
    if picture.figure is not None:
      figure_style.save(picture.figure, tmp_path, picture.name)


def test_a_run_without_gradient_logs_has_an_explanation_instead_of_figures(tmp_path):
  with MetricsLog(tmp_path) as log:
    log.write(1, {'train/loss': 1.0})
  for picture in training_figures.over_training(tmp_path, 'run'):
    assert picture.figure is None
    assert 'inspect.level=off' in picture.caption


# --- the data frame


def test_dataframe_has_one_row_per_layer_sublayer_and_metric():
  one = fake_gradients.measured(3, name='post', step=0)
  table = as_dataframe([one])
  assert list(table.columns) == ['model', 'step', 'layer', 'sublayer', 'measure', 'mean', 'low', 'high', 'batches']
  assert not table.duplicated(['model', 'step', 'layer', 'sublayer', 'measure']).any()
  row = table[(table.layer == 1) & (table.sublayer == 'feed_forward') & (table.measure == 'total')].iloc[0]
  values = one.samples['total'][:, 1, 1]
  assert row['mean'] == pytest.approx(values.mean())
  half = 4.302652729911275 * values.std(ddof=1) / math.sqrt(3)  # Student's t, 2 degrees of freedom
  assert (row['low'], row['high']) == pytest.approx((values.mean() - half, values.mean() + half))
  assert set(table[table.measure == 'attention_entropy'].sublayer) == {'head_0', 'head_1'}
  assert pd.isna(table[table.sublayer == 'head'].iloc[0]['layer'])
  assert table[table.sublayer == 'output'].iloc[0][['layer', 'measure']].tolist() == [3, 'total']
