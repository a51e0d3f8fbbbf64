"""Runs are pooled and compared only if they share every setting that their variants do not declare."""

import json
import math

import fake_runs
import pandas as pd
import pytest
from fake_runs import edit_runs
from summaries import load_summary, rendered_table

from lab.analysis import load_runs, recorded_run
from lab.core.experiment import Experiment
from lab.figures import experiment_figures
from lab.report import report
from training.config import Config
from training.run_files.result import read_result, write_result

pytestmark = pytest.mark.usefixtures('svg_only')

TWO = Experiment('?', {'baseline': {}, 'post_norm': {'model.connection': 'post'}}, name='block', seeds=(0, 1, 2, 3))
LEVELS = {'baseline': 2.9, 'post_norm': 2.8}
OTHER_TEXT = 'f00d' * 16


@pytest.fixture
def directory(tmp_path):
  return fake_runs.write_experiment(tmp_path / 'block', TWO, LEVELS, points=2)


def check_not_comparable(summary, variant, *reasons):
  """Checks that a variant has no mean and no verdict, and that the table gives the reasons."""
  entry = summary['variants'][variant]
  assert (entry['verdict'], entry['pooled']) == ('not comparable', False)
  assert entry['mean'] is entry['low'] is entry['high'] is entry['comparison'] is entry['token_multiplier'] is None
  assert len(entry['seeds']) == 4
  for width in (80, 100):
    text = rendered_table(summary, width)
    assert max(map(len, text.splitlines())) <= width
    for reason in reasons:
      assert f'{variant}: not comparable: ' in text
      assert reason in ' '.join(text.split()), text


WITHIN = {
  'fewer steps': ({'run.steps': 30}, {}, 'run.steps is 30 in seed 3, 300 in seeds 0-2'),
  'another rate': ({'optimizer.learning_rate': 1e-3}, {}, 'optimizer.learning_rate is 0.001 in seed 3, 0.004 in'),
  'another width': ({'model.d_model': 32}, {'parameters': 9}, 'model.d_model is 32 in seed 3, 64 in seeds 0-2'),
  'another batch': ({'run.batch_size': 8}, {}, 'run.batch_size is 8 in seed 3, 16 in seeds 0-2'),
  'another decay': ({'optimizer.weight_decay': 0.0}, {}, 'optimizer.weight_decay is 0.0 in seed 3, 0.1 in seeds 0-2'),
  'skipped steps': ({'run.on_nonfinite': 'skip'}, {}, 'run.on_nonfinite is skip in seed 3, stop in seeds 0-2'),
  'another text': ({}, {'data_checksum': OTHER_TEXT}, 'the data checksum is f00df00d in seed 3, b2c26b87 in seeds 0-2'),
  'extended': ({}, {'extended_at': [100]}, 'the step it was extended at is 100 in seed 3, none in seeds 0-2'),
  'one data seed': ({'data.seed': 7}, {}, 'data.seed is 7 in seed 3, the seed in seeds 0-2'),
  'one init seed': ({'run.init_seed': 7}, {}, 'run.init_seed is 7 in seed 3, the seed in seeds 0-2'),
  'another start': ({'run.init_from': 'a'}, {'init_from': {'sha256': 'a' * 64}}, 'run.init_from is a in seed 3,'),
}


@pytest.mark.parametrize('case', WITHIN)
def test_a_seed_with_other_settings_makes_its_variant_not_comparable(case, directory):
  config, result, reason = WITHIN[case]
  edit_runs(directory, 'post_norm', [3], config, result)
  check_not_comparable(load_summary(TWO, directory), 'post_norm', reason)


BETWEEN = {
  'steps': ({'run.steps': 30}, {}, 'run.steps is 30 (baseline 300)'),
  'text': ({}, {'data_checksum': OTHER_TEXT}, 'the data checksum is f00df00d (baseline b2c26b87)'),
  'decay, rate': (
    {'optimizer.weight_decay': 0.0, 'optimizer.learning_rate': 2e-3},
    {},
    'optimizer.learning_rate is 0.002 (baseline 0.004), optimizer.weight_decay is 0.0 (baseline 0.1)',
  ),
  'tuned alone': (
    {'optimizer.learning_rate': 8e-3},
    {'learning_rate_tuned': True},
    'optimizer.learning_rate is 0.008 (baseline 0.004)',
  ),
  'batch': ({'run.batch_size': 8}, {}, 'run.batch_size is 8 (baseline 16)'),
  'seeds': ({'data.seed': 7}, {}, 'data.seed is 7 (baseline 0 in seed 0, 1 in seed 1, 2 in seed 2, 3 in seed 3)'),
  'extended': ({}, {'extended_at': [100]}, 'the step it was extended at is 100 (baseline none)'),
  'not as declared': (
    {'model.connection': 'pre'},
    {},
    'connection is pre (declared post)',
  ),
  'random numbers': (
    {},
    {'settings': {'jax_default_prng_impl': 'rbg'}},
    'the setting jax_default_prng_impl is rbg (baseline threefry2x32)',
  ),
}


@pytest.mark.parametrize('case', BETWEEN)
def test_a_variant_with_an_undeclared_difference_is_not_compared(case, directory):
  config, result, reason = BETWEEN[case]
  edit_runs(directory, 'baseline', range(4), result={'settings': {'jax_default_prng_impl': 'threefry2x32'}})
  edit_runs(directory, 'post_norm', range(4), {}, {'settings': {'jax_default_prng_impl': 'threefry2x32'}})
  assert load_summary(TWO, directory)['variants']['post_norm']['comparison']
  edit_runs(directory, 'post_norm', range(4), config, result)
  summary = load_summary(TWO, directory)
  check_not_comparable(summary, 'post_norm', reason)
  assert summary['variants']['baseline']['mean'] is not None


def test_runs_of_two_texts_of_an_experiment_file_are_not_pooled_or_compared(directory):
  first, second = ({'model.idea': f'my.py sha256 {digit * 64}'} for digit in 'ab')
  edit_runs(directory, 'post_norm', range(4), first)
  assert load_summary(TWO, directory)['variants']['post_norm']['comparison']  # the baseline uses no part of the file
  edit_runs(directory, 'post_norm', [3], second)
  reason = 'model.idea is my.py sha256 bbbbbbbb in seed 3, my.py sha256 aaaaaaaa in seeds 0-2'
  check_not_comparable(load_summary(TWO, directory), 'post_norm', reason)
  edit_runs(directory, 'post_norm', [3], first)
  edit_runs(directory, 'baseline', range(4), second)
  reason = 'model.idea is my.py sha256 aaaaaaaa (baseline my.py sha256 bbbbbbbb)'
  check_not_comparable(load_summary(TWO, directory), 'post_norm', reason)


def test_a_message_lists_the_first_differences_and_the_summary_all(directory):
  config = {'run.steps': 30, 'run.batch_size': 8, 'optimizer.clip': 0.0, 'optimizer.beta2': 0.9, 'model.norm': 'layer'}
  edit_runs(directory, 'post_norm', range(4), config)
  summary = load_summary(TWO, directory)
  check_not_comparable(summary, 'post_norm', 'and 1 more (see summary.json)')
  assert len(summary['variants']['post_norm']['not_comparable']) == 5


def test_nothing_is_compared_with_a_baseline_of_mixed_settings(directory):
  edit_runs(directory, 'baseline', [1], {'run.steps': 30})
  summary = load_summary(TWO, directory)
  check_not_comparable(summary, 'baseline', 'run.steps is 30 in seed 1, 300 in seeds 0, 2, 3')
  post_norm = summary['variants']['post_norm']
  assert (post_norm['verdict'], post_norm['comparison']) == ('not comparable', None)
  assert post_norm['mean'] is not None
  assert 'post_norm: not comparable: the runs of its baseline, baseline, are themselves not comparable' in ' '.join(
    rendered_table(summary).split()
  )


def test_a_copy_under_another_seed_counts_once(directory):
  seed_0 = (directory / 'post_norm/seed_0/config.json').read_text()
  (directory / 'post_norm/seed_3/config.json').write_text(seed_0)
  summary = load_summary(TWO, directory)
  assert list(summary['variants']['post_norm']['seeds']) == ['0', '1', '2']
  assert any(note.startswith('post_norm: seed 3 repeats seed 0') for note in summary['notes'])
  report.write(TWO, directory, 'python train.py')
  frame = pd.read_csv(directory / 'results.csv')
  assert frame[(frame.variant == 'post_norm') & (frame.seed == 3)].pooled.item().startswith('no: ')


def test_a_result_that_contradicts_its_config_is_reported(directory):
  run = directory / 'post_norm/seed_2'
  write_result(run, (read_result(run) or {}) | {'steps': 30})
  reason = 'run.steps is 300 in the config.json of seed 2, 30 in its result.json'
  check_not_comparable(load_summary(TWO, directory), 'post_norm', reason)


def test_runs_that_attended_to_their_targets_are_not_compared(directory):
  edit_runs(directory, 'post_norm', range(4), config={'model.causal': False})
  check_not_comparable(
    load_summary(TWO, directory), 'post_norm', 'without a causal mask, each position attended to the token it predicts'
  )


def test_a_run_without_its_config_is_not_counted(directory):
  (directory / 'post_norm/seed_2/config.json').unlink()
  summary = load_summary(TWO, directory)
  assert list(summary['variants']['post_norm']['seeds']) == ['0', '1', '3']
  assert any('seed_2 has a result but no config.json' in note for note in summary['notes'])


SAME = {
  'the same text at another path': ('data.paths', {'data.task': 'files', 'data.paths': 'a.txt'}, {}),
  'the same checkpoint': ('run.init_from', {'run.init_from': 'b'}, {'init_from': {'sha256': 'a' * 64}}),
  'extended at a constant rate': ('', {'optimizer.schedule': 'constant'}, {}),
  'a newer config field': ('optimizer.accumulate', {}, {}),
}


@pytest.mark.parametrize('case', SAME)
def test_equivalent_settings_are_pooled(case, directory):
  path, config, result = SAME[case]
  for variant in TWO.variants:
    edit_runs(directory, variant, range(4), config, result)
  file = directory / 'post_norm/seed_1/config.json'
  flat = json.loads(file.read_text())
  if case == 'a newer config field':
    del flat[path]
  elif path:
    flat[path] = 'another path'
  else:
    edit_runs(directory, 'post_norm', [1], result={'extended_at': [100]})
  file.write_text(json.dumps(flat))
  assert load_summary(TWO, directory)['variants']['post_norm']['comparison']


def test_results_csv_says_which_runs_are_pooled(directory):
  edit_runs(directory, 'post_norm', [3], {'run.steps': 30})
  fake_runs.write_run(directory / 'mine/seed_0', 'block', 'mine', 0, 'completed', Config(), 3.0, points=2)
  report.write(TWO, directory, 'python train.py')
  frame = pd.read_csv(directory / 'results.csv')
  expected = {
    'baseline': 'yes',
    'mine': 'no: variant not shown',
    'post_norm': 'no: run.steps is 30 in seed 3, 300 in seeds 0-2',
  }
  assert frame.pooled.tolist() == frame.variant.map(expected).tolist()
  assert frame.columns[-1] == 'pooled'
  assert not frame[frame.pooled == 'yes'].empty
  page = (directory / 'report.html').read_text()
  assert '<td>not comparable</td>' in page
  assert 'not comparable: run.steps is 30 in seed 3, 300 in seeds 0-2' in page


def test_figures_draw_runs_that_are_not_comparable_dotted_and_say_so(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', TWO, LEVELS)
  edit_runs(directory, 'post_norm', [3], {'run.steps': 30})
  found = load_runs.load(TWO, directory)
  summary = load_summary(TWO, directory)
  drawings = [picture for picture in experiment_figures.draw_all(found, summary) if picture.figure]
  assert len(drawings) == 3, 'all but training time, which was not logged'
  for picture in drawings:
    assert 'not comparable (post_norm)' in picture.caption
    drawn = {line.get_gid() for axes in picture.figure.axes for line in axes.lines}
    assert {'seed:post_norm:0', 'mean:baseline'} <= drawn
    assert not drawn & {'mean:post_norm', 'difference:post_norm'}
  texts = [text.get_text() for text in experiment_figures.loss_curves(found, summary).figure.axes[0].texts]
  assert 'post_norm (not comparable)' in texts


def test_declared_differences_are_compared(tmp_path):
  changes = {'run.steps': 100, 'run.batch_size': 8, 'optimizer.learning_rate': 1e-3, 'model.connection': 'post'}
  declared = Experiment('?', {'baseline': {}, 'other': changes}, name='block', seeds=(0, 1))
  summary = load_summary(
    declared, fake_runs.write_experiment(tmp_path, declared, {'baseline': 2.9, 'other': 2.8}, points=2)
  )
  assert math.isclose(summary['variants']['other']['comparison']['difference'], -0.1, abs_tol=0.05)
  assert 'data order' in summary['not_held_equal'], 'the batch size differs'


def test_a_single_baseline_of_mixed_settings_has_no_interval_and_the_table_says_why(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', TWO, {'baseline': 2.9}, points=2)
  edit_runs(directory, 'baseline', [1], {'run.steps': 30})
  report.write(TWO, directory, 'python train.py')
  text = rendered_table(json.loads((directory / 'summary.json').read_text()))
  assert 'baseline: not comparable: run.steps is 30 in seed 1, 300 in seeds 0, 2, 3' in text
  assert 'one seed' not in text
  assert 'nothing: no runs are pooled' in (directory / 'report.html').read_text()


def test_another_flop_count_is_the_same_run_but_another_parameter_count_is_not(directory):
  """An older version may have counted FLOPs differently; the number of parameters belongs to the model."""
  edit_runs(directory, 'post_norm', [3], result={'flops_per_token': 5})
  assert load_summary(TWO, directory)['variants']['post_norm']['comparison']
  edit_runs(directory, 'post_norm', [3], result={'parameters': 5})
  check_not_comparable(
    load_summary(TWO, directory), 'post_norm', 'the number of parameters is 5 in seed 3, 624896 in seeds 0-2'
  )


def test_curves_of_different_parts_of_a_split_are_reported(directory):
  edit_runs(directory, 'post_norm', range(4), {'run.evaluation_batches': 8})
  summary = load_summary(TWO, directory)
  which = '(baseline: 512 sequences of 64 tokens, post_norm: 128 sequences of 64 tokens)'
  assert any(note.endswith(which) for note in summary['notes'])
  assert summary['variants']['post_norm']['comparison']
  assert summary['variants']['post_norm']['token_multiplier'] is None
  edit_runs(directory, 'post_norm', range(3), {'run.evaluation_batches': 32})
  which = (
    '(baseline, post_norm (seeds 0-2): 512 sequences of 64 tokens, post_norm (seed 3): 128 sequences of 64 tokens)'
  )
  assert any(note.endswith(which) for note in load_summary(TWO, directory)['notes']), 'also within one variant'


def test_a_run_with_a_damaged_log_is_missing_only_from_the_curves(directory):
  log = directory / 'post_norm/seed_2/metrics.jsonl'
  log.write_text('{' + log.read_text())
  found, summary = load_runs.load(TWO, directory), load_summary(TWO, directory)
  others = [run for run in found.of('post_norm') if run.seed != 2]
  mean = recorded_run.mean_curve(found.of('post_norm'), found.metric)
  pd.testing.assert_series_equal(mean, recorded_run.mean_curve(others, found.metric))
  assert len(mean)
  assert any(
    note.endswith('; until then its curve is not drawn and is left out of the mean curve') for note in summary['notes']
  )
  assert summary['variants']['post_norm']['comparison']['n'] == 4
  assert summary['variants']['post_norm']['token_multiplier'] is None


def test_dropped_updates_are_reported(directory):
  for variant in TWO.variants:
    edit_runs(directory, variant, range(4), {'run.on_nonfinite': 'skip'}, {'dropped_updates': 0})
  assert not [note for note in load_summary(TWO, directory)['notes'] if 'dropped' in note]
  edit_runs(directory, 'post_norm', [2], result={'dropped_updates': 40})
  note = 'post_norm, seed 2: 40 of 300 updates were not finite and were dropped'
  assert note in load_summary(TWO, directory)['notes']
