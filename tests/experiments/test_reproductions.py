"""Every reproduction: its declaration, its values at the smallest sizes, and parts of it compared with NumPy."""

import importlib
import math

import fake_runs
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.rank_collapse import relative_residual
from lab.analysis import load_runs
from lab.core import plan, registry
from lab.figures import figure_style
from lab.reproduce import expected_values, record
from lab.reproduce.article_block import article_config
from lab.reproduce.claim_verdict import compare_all
from lab.reproduce.learning_rate_grid import sensitivity, variant_name
from lab.reproduce.model_parts import module_with_weights
from lab.reproduce.plotted_data import plotted_data
from model.attention import Attention
from training.config import Config, ConfigError
from training.files import read_json

NAMES = registry.reproduction_names()
TRAINED = [name for name in NAMES if registry.find_reproduction(name).read]
MEASURED = [name for name in NAMES if name not in TRAINED]
COMMITTED = sorted(path.stem for path in expected_values.FOLDER.glob('*.json'))
TINY = {
  'context': {'num_layers': 2, 'd_model': 8, 'steps': 2, 'seeds': 2},
  'design_gradients': {
    'designs': ('pre', 'post', 'keel', 'manifold_hc', 'attention_residuals'),
    'depths': (2, 3),
    'd_model': 8,
    'batch': 1,
    'positions': 4,
    'seeds': 2,
  },
  'gradient_depth': {'depths': (4, 8), 'd_model': 8, 'batch': 1, 'positions': 4, 'seeds': 2},
  'heads_segment': {'logits': 11},
  'hidden_norm': {'d_model': 8, 'positions': 4, 'num_layers': 32, 'seeds': 2},
  'input_scale': {'d_model': 8, 'positions': 4, 'num_heads': 2, 'seeds': 2},
  'perturbation': {'num_layers': 8, 'd_model': 8, 'positions': 4, 'seeds': 2},
  'position_wise': {'d_model': 8, 'positions': 4, 'seeds': 2},
  'rank_collapse': {'d_model': 8, 'positions': 4, 'seeds': 2},
  'residual_scale': {'d_model': 8},
}
EXACT = ('worked_example', 'two_paths', 'heads_segment')  # take a few seconds each, and are exact at any size


def test_all_reproductions_are_registered():
  assert set(MEASURED) == {
    'worked_example', 'two_paths', 'heads_segment', 'zero_branch', 'input_scale', 'context', 'position_wise',
    'rank_collapse', 'residual_scale', 'perturbation', 'hidden_norm', 'gradient_depth',
    'design_gradients',
  }  # fmt: skip
  assert set(TRAINED) == {
    'glu_variants', 'warmup', 'lr_sensitivity', 'copy_task', 'trainability', 'initialisation',
  }  # fmt: skip


@pytest.mark.parametrize('name', NAMES)
def test_a_reproduction_states_its_claim_and_its_command(name):
  reproduction = registry.find_reproduction(name)
  assert reproduction.name == name
  assert reproduction.claim.endswith('.')
  assert reproduction.source
  assert reproduction.expected
  quantities = [expected.quantity for expected in reproduction.expected]
  assert len(set(quantities)) == len(quantities)
  assert f'python reproduce.py --only={name}' in importlib.import_module(f'experiments.{name}').__doc__
  assert (reproduction.measure is None) != (reproduction.read is None)


def test_every_reproduction_without_training_has_committed_values():
  assert set(MEASURED) <= set(COMMITTED) <= set(NAMES)


@pytest.mark.parametrize('name', COMMITTED)
def test_committed_values_match_the_declared_ones(name):
  reproduction = registry.find_reproduction(name)
  committed = read_json(expected_values.expected_path(name))
  assert set(committed['values']) == {expected.quantity for expected in reproduction.expected}
  assert all(value['tolerance'] > 0 for value in committed['values'].values())
  assert {'verdict', 'date', 'machine'} <= set(committed)


@pytest.mark.parametrize(
  'name',
  ['worked_example', *(pytest.param(name, marks=pytest.mark.slow) for name in EXACT if name != 'worked_example')],
)
def test_exact_reproductions_give_the_numbers_of_the_article(name):
  reproduction = registry.find_reproduction(name)
  measured = record.to_json(reproduction.measure(**reproduction.settings))
  for comparison in compare_all(reproduction, measured):
    assert comparison.verdict == 'reproduced', comparison


@pytest.mark.slow
@pytest.mark.parametrize('name', [name for name in MEASURED if name not in EXACT])
def test_every_quantity_is_measured_and_drawn_at_tiny_sizes(name):
  reproduction = registry.find_reproduction(name)
  check_drawn(reproduction, reproduction.measure(**{**reproduction.settings, **TINY.get(name, {})}))


def check_drawn(reproduction, measured):
  """Checks that all values are finite and that the figure has named lines; returns the comparisons by quantity."""
  measured = record.to_json(measured)
  comparisons = compare_all(reproduction, measured)
  assert all(comparison.value is not None for comparison in comparisons), comparisons
  figure = figure_style.styled(reproduction.draw)(measured)
  panels = plotted_data(figure)
  assert any(panel['lines'] or panel['bars'] or panel['images'] for panel in panels)
  assert all(line['name'] for panel in panels for line in panel['lines'])
  return {one.quantity: comparison for one, comparison in zip(reproduction.expected, comparisons, strict=True)}


def read_fake(name, tmp_path, levels, **options):
  """The comparisons of a trained reproduction, for fake runs with these final losses by variant."""
  experiment = registry.find_experiment(name)
  directory = fake_runs.write_experiment(tmp_path / name, experiment, levels=levels, points=3, inspect=False, **options)
  found = load_runs.load(experiment, directory)
  reproduction = registry.find_reproduction(name)
  return check_drawn(reproduction, reproduction.read(found))


def test_whether_gates_help_is_decided_by_the_losses(tmp_path):
  published = importlib.import_module('experiments.glu_variants').PUBLISHED
  comparisons = read_fake('glu_variants', tmp_path / 'a', published)
  assert {comparison.verdict for comparison in comparisons.values()} == {'reproduced'}
  assert comparisons['swiglu_minus_relu'].value == pytest.approx(-0.053, abs=0.02)
  comparisons = read_fake('glu_variants', tmp_path / 'b', {**published, 'swiglu': 2.2})
  assert comparisons['swiglu_minus_relu'].verdict == 'not reproduced'


def test_copy_task_solved_by_two_of_three_placements(tmp_path):
  levels = {'pre': 0.0, 'post': math.log(64), 'deepnorm': 0.0}
  finals = {(name, seed): level for name, level in levels.items() for seed in range(5)}
  base = registry.find_experiment('copy_task').base
  comparisons = read_fake('copy_task', tmp_path, levels, finals=finals, changes=base)
  assert {comparison.verdict for comparison in comparisons.values()} == {'reproduced'}


def test_a_loss_that_float32_rounds_to_0_is_drawn():
  curves = {name: {'tokens': [10, 20], 'loss': [4.0, 0.0]} for name in ('pre', 'post', 'deepnorm')}
  losses = {name: [0.0, 0.5] for name in curves}
  (axes,) = registry.find_reproduction('copy_task').draw({'curves': curves, 'losses': losses}).axes
  (line,) = (line for line in axes.lines if line.get_gid() == 'pre')
  assert axes.get_ylim()[0] < line.get_ydata()[1] < 1e-6


def test_no_warm_up_costs_one_placement(tmp_path):
  module = importlib.import_module('experiments.warmup')
  levels = {variant_name(name, rate): 3.0 for name in module.SETTINGS for rate in module.RATES}
  levels |= {variant_name('post_no_warmup', rate): 3.5 for rate in module.RATES}
  comparisons = read_fake('warmup', tmp_path / 'a', levels)
  assert comparisons['post_cost'].value == pytest.approx(0.5, abs=0.05)
  assert comparisons['post_cost'].verdict == 'reproduced'
  assert comparisons['pre_cost'].value == pytest.approx(0, abs=0.05)


def test_sensitivity_counts_a_diverged_run_with_its_initial_loss(tmp_path):
  module = importlib.import_module('experiments.lr_sensitivity')
  levels = {variant_name(name, rate): 3.0 for name in module.SETTINGS for rate in module.RATES}
  statuses = {(variant_name('post', 0.3), seed): 'diverged' for seed in range(5)}
  comparisons = read_fake('lr_sensitivity', tmp_path, levels, statuses=statuses)
  # The diverged rate counts with the initial loss of the fake curves, about 6.5; the six others end at about 3.
  assert comparisons['post'].value == pytest.approx(3.5 / 7, abs=0.03)
  assert comparisons['qk_norm'].value == pytest.approx(0, abs=0.02)


def test_sensitivity_of_two_seeds():
  np.testing.assert_allclose(sensitivity(np.array([[3.0, 3.0], [3.0, 5.0]])), [0, 1])


def test_trainability_map(tmp_path):
  names = list(registry.find_experiment('trainability').variants)
  levels = {name: 4.43 if name.startswith('no_residual') and '_3_' not in name else 3.0 for name in names}
  comparisons = read_fake('trainability', tmp_path, levels)
  assert {comparison.verdict for comparison in comparisons.values()} == {'reproduced'}


def test_initialisation_is_judged_at_4e_3_and_at_the_best_rate(tmp_path):
  module = importlib.import_module('experiments.initialisation')

  def levels(post, post_without):
    by_setting = dict(zip(module.SETTINGS, (3.0, post, 3.0, post_without), strict=True))
    return {variant_name(name, rate): level for name, level in by_setting.items() for rate in module.RATES}

  comparisons = read_fake('initialisation', tmp_path / 'a', levels(2.9, 4.43))
  assert {comparison.verdict for comparison in comparisons.values()} == {'reproduced'}
  # Post-LN is better only at a rate other than 4e-3.
  lost = levels(3.2, 3.2) | {variant_name('post_depth_scale', 1e-3): 2.9}
  comparisons = read_fake('initialisation', tmp_path / 'b', lost)
  assert {name: comparison.verdict for name, comparison in comparisons.items()} == {
    'depth_scale': 'not reproduced', 'best': 'reproduced', 'no_depth_scale': 'not reproduced',
  }  # fmt: skip


@pytest.mark.parametrize('name', TRAINED)
def test_the_runs_of_a_trained_reproduction_can_be_planned(name, tmp_path):
  experiment = registry.find_experiment(name)
  assert plan.plan_runs(experiment, Config(), {}, tmp_path)


def test_relative_residual_matches_numpy():
  x_TD = np.array([[1.0, 2.0], [3.0, -4.0], [0.0, 1.0]])

  def norm(a):
    return math.sqrt(np.abs(a).sum(0).max() * np.abs(a).sum(1).max())

  expected = norm(x_TD - x_TD.mean(0)) / norm(x_TD)
  np.testing.assert_allclose(relative_residual(jnp.asarray(x_TD)), expected, rtol=1e-6)


def test_module_with_weights_sets_only_the_given_weights():
  weights = {'value/kernel': [[1.0, 2.0], [3.0, 4.0]]}
  attention = module_with_weights(Attention, article_config(), weights)
  np.testing.assert_array_equal(attention.value.kernel[...], [[1, 2], [3, 4]])
  assert not attention.query.kernel[...].any()
  with pytest.raises(ConfigError, match="unknown parameter of Attention 'values/kernel': did you mean 'value/kernel'"):
    module_with_weights(Attention, article_config(), {'values/kernel': 1.0})
