"""The conditions that a report states, compared with the settings of its runs."""

import dataclasses
import json
import shutil

import fake_runs
import pytest
from fake_runs import edit_runs
from summaries import rendered_table
from test_comparability import LEVELS, OTHER_TEXT, TWO

from lab.analysis import load_runs, tuning_results
from lab.analysis.summary import summarise
from lab.analysis.tuning_results import GridPoint, Tuning
from lab.core.experiment import Experiment
from training.code_version import code_version
from training.config import Config
from training.run_files.result import read_result

ORDER, VALUES = 'data order, by seed', 'initial values of parameters with the same path and shape, by seed'
BOTH = 'the initial values and the data order, which change together from seed to seed'
FROM = {'run.init_from': 'runs/block/baseline/seed_0'}


@pytest.fixture
def directory(tmp_path):
  return fake_runs.write_experiment(tmp_path / 'block', TWO, LEVELS, points=2)


def summary_of(directory, experiment=TWO, chosen=None):
  return summarise(load_runs.load(experiment, directory), chosen)


def edit_all(directory, config=None, result=None):
  for variant in TWO.variants:
    edit_runs(directory, variant, range(4), config, result)


COVERED = {
  'all that a seed decides': ({}, BOTH),
  'one checkpoint': (FROM, 'the data order only'),
  'one seed of the data': ({'data.seed': 7}, 'the initial values only'),
  'dropout': (
    {'model.dropout': 0.1},
    'the initial values, the dropout masks and the data order, which change together from seed to seed',
  ),
  'dropout from one checkpoint': (
    {**FROM, 'model.dropout': 0.1},
    'the dropout masks and the data order, which change together from seed to seed',
  ),
  'synthetic data': ({'data.task': 'copy'}, BOTH.replace('data order', 'training sequences')),
}


@pytest.mark.parametrize('case', COVERED)
def test_an_interval_covers_what_the_seeds_vary(case, directory):
  config, covers = COVERED[case]
  edit_all(directory, config)
  assert summary_of(directory)['interval']['covers'] == covers


def test_seeds_that_vary_nothing_count_as_one_run(directory):
  """Without dropout, from one checkpoint, in one data order, four seeds are four copies of the same run."""
  edit_all(directory, {**FROM, 'data.seed': 7})
  summary = summary_of(directory)
  assert summary['interval']['covers'] is None
  assert summary['variants']['post_norm']['comparison']['verdict'] == 'inconclusive (one seed)'
  assert sum(' repeats seed ' in note for note in summary['notes']) == 6


def test_randomness_of_one_variant_is_named_for_it_alone(tmp_path):
  experiment = dataclasses.replace(TWO, variants={'baseline': {}, 'dropped': {'model.dropout': 0.1}})
  directory = fake_runs.write_experiment(tmp_path, experiment, {'baseline': 2.9, 'dropped': 2.8}, points=2)
  assert summary_of(directory, experiment)['interval']['covers'] == f'{BOTH}; for dropped also the dropout masks'


UNEQUAL = {  # a declared difference, what it keeps from being held equal, and what stays equal
  'another batch': ({'run.batch_size': 8}, 'data order', VALUES),
  'other sequences': ({'data.sequence_length': 32}, 'data order', VALUES),
  'another order': ({'data.seed': 7}, 'data order', VALUES),
  'other values': ({'run.init_seed': 7}, 'initial values', ORDER),
  'another scheme': ({'model.init': 'gpt2'}, 'initial values', ORDER),
  'DeepNorm': ({'model.connection': 'deepnorm'}, 'initial values', ORDER),
  'CompleteP': ({'model.connection': 'completep:base_layers=1'}, 'initial values', ORDER),
  'skipless': ({'model.connection': 'skipless'}, 'initial values', ORDER),
  'another depth': ({'model.num_layers': 6}, 'initial values', ORDER),
  'one checkpoint': (FROM, 'initial values', ORDER),
}


@pytest.mark.parametrize('case', UNEQUAL)
def test_what_differed_is_not_stated_as_held_equal(case, tmp_path):
  changes, unequal, equal = UNEQUAL[case]
  experiment = Experiment('?', {'baseline': {}, 'other': changes}, name='block', seeds=(0, 1))
  directory = fake_runs.write_experiment(tmp_path, experiment, {'baseline': 2.9, 'other': 2.8}, points=2)
  summary = summary_of(directory, experiment)
  assert unequal in summary['not_held_equal']
  assert equal in summary['held_equal']
  assert not any(text.startswith(unequal) for text in summary['held_equal'])


def test_initial_values_from_a_checkpoint_are_stated_as_such(directory):
  edit_all(directory, FROM, {'init_from': {'sha256': 'a' * 64}})
  assert f'initial values from {FROM["run.init_from"]}' in summary_of(directory)['held_equal']


PROVENANCE = {
  'device': ({'device': 'NVIDIA H200'}, 'device differs: TFRT_CPU_0 in baseline; NVIDIA H200 in post_norm', 'device'),
  'layout': ({'layout': '2 devices'}, 'layout differs: 1 device, 1 core in baseline; 2 devices in', 'layout'),
  'versions': (
    {'versions': {'jax': '0.11.0', 'flax': '0.12.0', 'python': '3.12.3'}},
    'version of jax differs: 0.10.2 in baseline; 0.11.0 in post_norm',
    'version of jax',
  ),
  'settings': (
    {'settings': {'jax_default_matmul_precision': 'bfloat16'}},
    'jax_default_matmul_precision differs: not set in baseline; bfloat16 in post_norm',
    'jax_default_matmul_precision',
  ),
  'code': (
    {'code': {'digest': 'b' * 64, 'revision': 'c' * 40, 'modified': True}},
    'code differs: digest aaaaaaaa in baseline; revision ccccccc+changes, digest bbbbbbbb in post_norm',
    'code',
  ),
}


@pytest.mark.parametrize('case', PROVENANCE)
def test_differing_provenance_is_in_the_notes_and_in_the_sentence(case, directory):
  result, note, name = PROVENANCE[case]
  edit_all(directory, result={'code': {'digest': 'a' * 64}, 'settings': {}})
  before = summary_of(directory)
  assert not any('differs' in note for note in before['notes'])
  assert "provenance differs from the baseline's" not in before['variants']['post_norm']['sentence']
  edit_runs(directory, 'post_norm', range(4), result=result)
  summary = summary_of(directory)
  assert any(one.startswith(note) for one in summary['notes']), summary['notes']
  assert summary['variants']['post_norm']['sentence'].endswith(
    f"; provenance differs from the baseline's: {name} (see the notes)"
  )
  assert (VALUES in summary['held_equal']) == (case not in ('code', 'versions'))
  assert "provenance differs from the baseline's" in ' '.join(rendered_table(summary).split())


def test_runs_of_other_code_are_named_by_seed(directory):
  edit_all(directory, result={'code': {'digest': 'a' * 64}})
  edit_runs(directory, 'post_norm', [1, 2], result={'code': {'digest': 'b' * 64}})
  note = 'code differs: digest aaaaaaaa in baseline, post_norm (seeds 0, 3); digest bbbbbbbb in post_norm (seeds 1, 2)'
  assert note in summary_of(directory)['notes']


def test_a_run_whose_code_changed_is_reported(directory):
  edit_all(directory, result={'code': {'digest': 'a' * 64}})
  edit_runs(directory, 'post_norm', [2], result={'code_changed_at': [{'step': 40, 'digest': 'b' * 64}]})
  notes = summary_of(directory)['notes']
  assert 'post_norm, seed 2: the code changed at step 40, so this run mixes two versions of the model' in notes
  edit_runs(directory, 'post_norm', [2], result={'code_changed_at': [{'step': 300, 'digest': 'b' * 64}]})
  notes = summary_of(directory)['notes']
  assert 'post_norm, seed 2: evaluated with other code than it was trained with' in notes
  assert not [note for note in notes if 'mixes' in note]


def tuned(tmp_path, settings=None, variants=None, checksum='b2c26b8719b188f5', seeds=(100, 101), rate=4e-3):
  """The summary of runs at the default rate, with a tuning that chose `rate`."""
  directory = fake_runs.write_experiment(tmp_path / 'block', TWO, LEVELS, points=2, tuned=True)
  points = [
    GridPoint(name, one, 20, seed, 'completed', 3.0 - (one == rate), 3.0 - (one == rate), 'bits per byte')
    for name in TWO.variants
    for one in (2e-3, 4e-3, 8e-3)
    for seed in seeds
  ]
  about = {'settings': settings or Config().to_flat(), 'variants': variants or TWO.variants, 'data_checksum': checksum}
  return summary_of(directory, chosen=Tuning(tmp_path / 'tuned.csv', about, tuning_results.mark_chosen(points)))


def test_a_tuning_that_chose_these_rates_is_stated(tmp_path):
  summary = tuned(tmp_path)
  assert 'tuning budget for the learning rate' in summary['held_equal']
  assert summary['tuning']['sentence'].startswith('each variant runs at the learning rate (of 2e-3, 4e-3, 8e-3) with')


MISMATCHES = {
  'other steps': (
    {'settings': {**Config().to_flat(), 'run.steps': 150}},
    'run.steps is 300 (150 in the tuning)',
  ),
  'another text': ({'checksum': OTHER_TEXT}, 'the tuning used another text'),
  'another rate': (
    {'rate': 2e-3},
    'baseline runs at learning rate 4e-3 with warm-up 20 steps (tuned: learning rate 2e-3 with warm-up 20 steps)',
  ),
  'its own seeds': ({'seeds': (3, 100)}, 'seed 3 was also used for tuning'),
  'another variant': (
    {'variants': {'baseline': {}, 'post_norm': {'model.connection': 'none'}}},
    'post_norm was tuned with other changes',
  ),
}


@pytest.mark.parametrize('case', MISMATCHES)
def test_a_tuning_that_does_not_apply_is_not_stated(case, tmp_path):
  options, reason = MISMATCHES[case]
  summary = tuned(tmp_path, **options)
  assert 'tuning budget for the learning rate' not in summary['held_equal']
  assert 'tuning of the learning rate' in summary['not_held_equal']
  assert any(reason in line for line in summary['tuning']['contradictions'])
  text = ' '.join(rendered_table(summary).split())
  assert 'tuning: the tuning does not apply to these runs: ' in text
  assert 'each variant runs at' not in text


def test_runs_of_other_code_than_this_checkout_are_reported(directory):
  assert not any('code' in note for note in summary_of(directory)['notes'])
  edit_runs(directory, 'post_norm', [1, 2], result={'code': {'digest': 'b' * 64, 'revision': None, 'modified': False}})
  assert any(note.startswith('2 of 8 runs were trained by code other than') for note in summary_of(directory)['notes'])


def test_results_of_an_older_version_are_reported(directory):
  path = directory / 'post_norm/seed_1/result.json'
  path.write_text(json.dumps({name: one for name, one in read_result(path.parent).items() if name != 'code'}))
  note = 'written by an older version, without a checksum or a code version: post_norm (seed 1)'
  assert note in summary_of(directory)['notes']


def test_an_unrecorded_setting_counts_as_no_difference(directory):
  edit_runs(directory, 'post_norm', [3], result={'settings': {'jax_enable_x64': False, 'XLA_FLAGS': None}})
  for variant, seed in (('baseline', 0), ('post_norm', 0), ('post_norm', 1), ('post_norm', 2)):
    path = directory / variant / f'seed_{seed}/result.json'
    later = ('settings', 'code', 'sha256')
    old = {name: value for name, value in json.loads(path.read_text()).items() if name not in later}
    path.write_text(json.dumps(old))
  summary = summary_of(directory)
  differing = [note for note in summary['notes'] if 'differs' in note]
  assert [note.partition(' ')[0] for note in differing] == ['code', 'jax_enable_x64']
  assert differing[1] == 'jax_enable_x64 differs: not set in baseline (seeds 1-3); False in post_norm (seed 3)'
  edit_runs(directory, 'post_norm', [3], result={'settings': {'jax_default_prng_impl': 'threefry2x32'}})
  assert not [note for note in summary_of(directory)['notes'] if note.startswith(('jax_', 'XLA_'))]


def test_document_masking_does_not_change_the_data_order(tmp_path):
  end = {'data.end_token': 'end'}
  variants = {'baseline': end, 'masked': {**end, 'data.mask_documents': True}}
  experiment = dataclasses.replace(TWO, variants=variants)
  directory = fake_runs.write_experiment(tmp_path, experiment, {'baseline': 2.9, 'masked': 2.8}, points=2)
  assert ORDER in summary_of(directory, experiment)['held_equal']


def test_without_common_seeds_nothing_is_held_equal_by_seed(directory):
  for variant, seeds in (('baseline', (0, 1)), ('post_norm', (2, 3))):
    for seed in seeds:
      shutil.rmtree(directory / variant / f'seed_{seed}')
  summary = summary_of(directory)
  assert summary['variants']['post_norm']['comparison']['n'] == 0
  assert summary['not_held_equal'][:2] == ['data order', 'initial values']


def test_the_data_order_is_not_stated_as_equal_for_other_code(directory):
  edit_runs(directory, 'post_norm', range(4), result={'code': {'digest': 'b' * 64}})
  assert 'data order' in summary_of(directory)['not_held_equal']


def test_a_run_resumed_under_other_settings_is_reported_and_not_compared(directory):
  changes = {'jax_default_matmul_precision': ['bfloat16', None], 'version of jax': ['0.1', '0.10.2']}
  edit_runs(directory, 'post_norm', [2], result={'environment_changed_at': [{'step': 40, 'changes': changes}]})
  summary = summary_of(directory)
  assert (
    'post_norm, seed 2: resumed in another environment: from step 40 on jax_default_matmul_precision not set '
    'instead of bfloat16, version of jax 0.10.2 instead of 0.1'
  ) in summary['notes']
  assert 'initial values' in summary['not_held_equal']
  changes = {'jax_default_prng_impl': ['rbg', 'threefry2x32']}
  edit_runs(directory, 'post_norm', range(4), result={'environment_changed_at': [{'step': 40, 'changes': changes}]})
  reason = 'the setting jax_default_prng_impl is rbg up to step 40, then threefry2x32 (baseline threefry2x32)'
  assert summary_of(directory)['variants']['post_norm']['not_comparable'] == [reason]
  edit_runs(directory, 'post_norm', range(4), result={'environment_changed_at': [{'step': 300, 'changes': changes}]})
  summary = summary_of(directory)
  assert summary['variants']['post_norm']['comparison'], 'the evaluation draws no random numbers'
  assert summary['notes'][-1].endswith(': evaluated with jax_default_prng_impl threefry2x32 instead of rbg')


def test_runs_started_with_other_code_share_nothing_that_depends_on_code(directory):
  change = {'step': 40, 'digest': code_version()['digest'], 'before': 'b' * 64}
  edit_runs(directory, 'post_norm', range(4), result={'code_changed_at': [change]})
  assert summary_of(directory)['not_held_equal'][:2] == ['data order', 'initial values']
  edit_runs(directory, 'post_norm', range(4), result={'code_changed_at': [change | {'step': 300}]})
  assert summary_of(directory)['not_held_equal'][:2] == ['data order', 'initial values']
  change = {'step': 300, 'digest': 'b' * 64, 'before': code_version()['digest']}
  other = {'digest': 'b' * 64}
  edit_runs(directory, 'post_norm', range(4), result={'code_changed_at': [change], 'code': other})
  assert {ORDER, VALUES} <= {*summary_of(directory)['held_equal']}


def test_a_variant_is_tuned_only_if_all_of_its_runs_are(directory):
  edit_runs(directory, 'post_norm', [0, 1], result={'learning_rate_tuned': True})
  summary = summary_of(directory)
  assert summary['variants']['post_norm']['learning_rate_tuned'] is False
  assert '(tuned' not in summary['variants']['post_norm']['sentence']
  assert 'the learning rate was tuned in post_norm (seeds 0, 1), and set by hand in its other runs' in summary['notes']
