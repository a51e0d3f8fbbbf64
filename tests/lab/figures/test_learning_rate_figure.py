"""The figure of a tuning, read from its artists and compared with its tuned.csv."""

import dataclasses

import numpy as np
import pytest
from matplotlib.colors import to_hex
from tuning_points import ABOUT, RATES, points_of

from lab.analysis import tuned_learning_rates, tuning_results
from lab.analysis.tuning_results import Tuning
from lab.core import registry
from lab.core.experiment import Experiment
from lab.figures import figure_style
from lab.figures.learning_rate_figure import final_loss_by_learning_rate

EXPERIMENT = Experiment('?', {'baseline': {}, 'post': {}, 'stuck': {}, 'not_tuned': {}})


@pytest.fixture(scope='module')
def drawn(tmp_path_factory):
  losses = {
    'baseline': [[2.5, 2.6], [2.3, 2.4], [2.35, 2.45]],
    'post': [[2.4, 2.5], [2.0, 9.0], [9.5, 12.0]],
    'stuck': [[4.5, 4.5], [4.5, 4.5], [4.4, 4.4]],
  }
  points = [
    point if point.variant != 'stuck' else dataclasses.replace(point, status='failed_to_learn')
    for point in points_of(losses)
  ]
  path = tuning_results.write_tuning(
    Tuning(tmp_path_factory.mktemp('x') / 'tuned.csv', ABOUT, tuning_results.mark_chosen(points))
  )
  picture = final_loss_by_learning_rate(tuning_results.read_tuning(path), EXPERIMENT)  # only from the file
  figure_style.save(picture.figure, path.parent, picture.name)
  axes = picture.figure.axes[0]
  return picture, {artist.get_gid(): artist for artist in axes.get_children() if artist.get_gid()}


def test_every_run_is_a_mark_and_every_mean_a_line(drawn):
  _, artists = drawn
  assert artists['completed:baseline:0.002:101'].get_xydata().tolist() == [[2e-3, 2.4]]
  np.testing.assert_allclose(artists['mean:baseline:20'].get_xydata(), np.transpose([RATES, [2.55, 2.35, 2.4]]))
  np.testing.assert_allclose(artists['mean:post:20'].get_ydata(), [2.45, 5.5, 10.75])  # diverged runs count
  assert sum(gid.partition(':')[0] in ('completed', 'diverged', 'failed_to_learn') for gid in artists) == 3 * 3 * 2


def test_the_chosen_rate_has_a_ring_and_is_in_the_legend(drawn):
  picture, artists = drawn
  np.testing.assert_allclose(artists['chosen:baseline'].get_xydata(), [[2e-3, 2.35]])
  np.testing.assert_allclose(artists['chosen:post'].get_xydata(), [[1e-3, 2.45]])
  texts = [text.get_text() for text in picture.figure.legends[0].get_texts()]
  assert texts == ['baseline (2e-3)', 'post (1e-3)', 'stuck (4e-3)']


def test_failed_runs_have_separate_marks_and_do_not_flatten_the_rest(drawn):
  picture, artists = drawn
  axes = picture.figure.axes[0]
  crosses = [artist for gid, artist in artists.items() if gid.startswith('diverged:post')]
  assert [cross.get_marker() for cross in crosses] == ['x'] * 3
  assert axes.get_ylim()[1] < 3
  failed = [artist for gid, artist in artists.items() if gid.startswith(('diverged', 'failed_to_learn:'))]
  assert len(failed) == 3 + 6
  for mark in failed:  # above the axes, a row for each variant, at its rate
    (rate, height), *_ = axes.transAxes.inverted().transform(mark.get_transform().transform(mark.get_xydata()))
    assert 1 < height < 1.2
    assert 0 <= rate <= 1
  assert len({mark.get_ydata()[0] for mark in failed}) == 2
  assert artists['chosen:stuck'].get_ydata()[0] == artists['failed_to_learn:stuck:0.004:100'].get_ydata()[0]
  assert to_hex(artists['failed_to_learn:stuck:0.001:100'].get_markerfacecolor()) == '#ffffff'
  assert to_hex(artists['completed:post:0.001:100'].get_markerfacecolor()) != '#ffffff'
  assert 'Hollow' in picture.caption
  assert 'Cross' in picture.caption


def test_the_axis_is_logarithmic_with_ticks_at_the_grid(drawn):
  picture, _ = drawn
  axes = picture.figure.axes[0]
  assert axes.get_xscale() == 'log'
  assert [label.get_text() for label in axes.get_xticklabels()] == ['1e-3', '2e-3', '4e-3']
  assert axes.get_ylabel() == 'final validation loss\n(bits per byte)'


def test_variants_have_the_same_colours_as_in_other_figures(drawn):
  _, artists = drawn
  styles = figure_style.variant_styles(EXPERIMENT)
  for variant in ('baseline', 'post', 'stuck'):
    assert to_hex(artists[f'mean:{variant}:20'].get_color()) == to_hex(styles[variant].colour)


def test_marks_of_many_failed_variants_are_inside_the_figure(tmp_path):
  read = tuning_results.read_tuning(tuned_learning_rates.COMMITTED / 'norm_placement.csv')
  figure = final_loss_by_learning_rate(read, registry.find_experiment('norm_placement')).figure
  figure_style.save(figure, tmp_path, 'x')
  failed = [line for line in figure.axes[0].lines if line.get_gid().startswith(('diverged', 'failed_to_learn'))]
  assert len(failed) == 9
  assert max(line.get_window_extent().y1 for line in failed) <= figure.bbox.y1
