"""Figures of measured gradients, on fake measurements."""

from pathlib import Path

import fake_gradients
import numpy as np
import pytest

from lab.core.registry import find_experiment
from lab.figures import figure_style
from lab.inspect import gradient_figures

RUN = Path('/runs/block')


def drawn_lines(axes) -> list[np.ndarray]:
  return [np.asarray(line.get_ydata(), float) for line in axes.lines]


def test_two_paths_plots_the_measured_means():
  one = fake_gradients.measured(3)
  drawn = gradient_figures.two_paths([one])
  assert 'cannot show' not in drawn.caption
  figure = drawn.figure
  norm_axes, cosine_axes = figure.axes
  for line, name in zip(norm_axes.lines, ('total', 'skip', 'branch'), strict=True):
    assert line.get_label() == name
    np.testing.assert_allclose(line.get_ydata(), one.mean(name).ravel())
    np.testing.assert_array_equal(line.get_xdata(), [0, 0.5, 1, 1.5, 2, 2.5])
  np.testing.assert_allclose(drawn_lines(cosine_axes)[0], one.mean('cosine').ravel())
  assert 'norm over tokens' in norm_axes.get_ylabel()


def test_a_zero_path_does_not_extend_the_logarithmic_axis():
  one = fake_gradients.measured(2)
  one.samples['skip'][:] = 0
  drawn = gradient_figures.two_paths([one])
  assert 'the two parts; it is 0 where one of them is 0, which a logarithmic axis cannot show.' in drawn.caption
  figure = drawn.figure
  assert np.isnan(drawn_lines(figure.axes[0])[1]).all()
  assert figure.axes[0].get_ylim()[0] > 0.1


@pytest.mark.parametrize('count', [1, 2, 3, 4, 7])
def test_two_paths_has_a_panel_for_each_model(count):
  figure = gradient_figures.two_paths([fake_gradients.measured(2 + k) for k in range(count)])
  titles = [axes.get_title() for axes in figure.figure.axes]
  assert [title for title in titles if title] == [f'post, {2 + k} layers' for k in range(count)]


def test_norm_by_depth_fits_both_norms():
  measured = [fake_gradients.measured(layers, last=layers**-0.5) for layers in (4, 8, 16)]
  figures = {figure.name: figure for figure in gradient_figures.draw_all(measured)}
  labels = [line.get_label() for line in figures['norm_by_depth'].figure.axes[0].lines]
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
