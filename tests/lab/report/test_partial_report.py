"""Reports of partial and other experiments: with missing, failed or tuned runs, or on a synthetic task."""

import csv
import json
import re

import fake_runs
import made_result
import pytest
from summaries import load_summary, rendered_table

from lab.core.experiment import Experiment
from lab.report import report
from training.config import ConfigError
from training.run_files.result import read_result

pytestmark = pytest.mark.usefixtures('svg_only')

COMMAND = 'python train.py --experiment=block --seeds=0,1,2,3,4'
COPY = Experiment(
  'Can it copy?',
  {'baseline': {}, 'post': {'model.connection': 'post'}, 'deep': {'model.connection': 'deepnorm'}},
  name='copy',
  seeds=(0, 1, 2),
)


PARTIAL = {
  'no baseline': (
    {'levels': {'relu': 3.0, 'post_norm': 2.8}},
    ['baseline, no_residual: no finished run', 'No comparison'],
  ),
  'baseline alone': (
    {'levels': {'baseline': 2.9}},
    ['post_norm, relu, no_residual: no finished run', 'only the baseline has finished runs'],
  ),
  'all diverged': (
    {
      'levels': {'baseline': 2.9, 'post_norm': 2.8},
      'statuses': {('post_norm', k): 'diverged' for k in range(5)},
    },
    ['unstable (0 of 5 learned): 5 diverged at learning rate 4e-3', 'in no pair did both runs reach the last step'],
  ),
  'everything diverged': (
    {
      'levels': {'baseline': 2.9, 'post_norm': 2.8},
      'statuses': {(name, k): 'diverged' for name in ('baseline', 'post_norm') for k in range(5)},
      'ngram_baselines': {},
    },
    ['unstable (0 of 5 learned; baseline: 0 of 5 learned)'],
  ),
  'no inspection': ({'levels': {'baseline': 2.9, 'relu': 3.0}, 'inspect': False}, ['inspect.level=off']),
}


@pytest.mark.parametrize('case', PARTIAL)
def test_partial_experiments_say_what_is_missing(tmp_path, case):
  options, pieces = PARTIAL[case]
  directory = fake_runs.write_experiment(tmp_path / 'block', points=3, **options)
  report.write(fake_runs.BLOCK, directory, COMMAND)
  text = (directory / 'summary.json').read_text()
  assert not re.search('NaN|Infinity', text)
  page = (directory / 'report.html').read_text()
  for piece in pieces:
    assert piece in page
  assert 'does not train' not in page
  assert max(map(len, rendered_table(json.loads(text)).splitlines())) <= 100


def test_missing_seeds_leave_the_remaining_pairs(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', levels={'baseline': 2.9, 'relu': 3.0}, points=3)
  for seed in (1, 3, 4):
    (directory / f'baseline/seed_{seed}/result.json').unlink()
  (directory / 'relu/seed_4/metrics.jsonl').unlink()
  summary = load_summary(fake_runs.BLOCK, directory)
  assert list(summary['variants']['relu']['comparison']['differences']) == ['0', '2']
  assert 'baseline: no finished run of seeds 1, 3, 4' in summary['notes']
  assert any('relu/seed_4/metrics.jsonl' in note for note in summary['notes'])
  (directory / 'baseline/seed_2/result.json').unlink()
  sentence = load_summary(fake_runs.BLOCK, directory)['variants']['relu']['sentence']
  assert sentence.startswith('inconclusive (one seed): +0.')
  assert 'an interval needs at least two seeds' in sentence


def test_runs_that_were_extended_at_the_same_step_share_a_line(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', points=3)
  for path in sorted(directory.glob('*/seed_*')):
    made_result.finish(path, **{**read_result(path), 'extended_at': [30]})
  assert 'all runs: extended at step 30' in load_summary(fake_runs.BLOCK, directory)['notes']
  for variant, seed, steps in (('relu', 0, []), ('relu', 2, [30, 40]), ('baseline', 1, [])):
    path = directory / variant / f'seed_{seed}'
    made_result.finish(path, **{**read_result(path), 'extended_at': steps})
  notes = [note for note in load_summary(fake_runs.BLOCK, directory)['notes'] if 'extended' in note]
  assert notes[0].startswith('baseline, seeds 0, 2-4; ')
  assert 'relu, seeds 1, 3, 4' in notes[0]
  assert notes[0].endswith(': extended at step 30')
  assert notes[1:] == ['relu, seed 2: extended at step 30, 40']


def test_seeds_that_all_variants_lack_are_reported_once(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', levels={'baseline': 2.9, 'relu': 3.0}, points=3)
  for seed in (2, 3, 4):
    (directory / f'baseline/seed_{seed}/result.json').unlink()
    (directory / f'relu/seed_{seed}/result.json').unlink()
  absent = 'post_norm, no_residual: no finished run'
  assert load_summary(fake_runs.BLOCK, directory)['notes'] == ['no finished run of seeds 2-4', absent]
  (directory / 'relu/seed_1/result.json').unlink()
  apart = ['baseline: no finished run of seeds 2-4', absent, 'relu: no finished run of seeds 1-4']
  assert load_summary(fake_runs.BLOCK, directory)['notes'] == apart


@pytest.mark.parametrize(
  ('changes', 'seeds', 'covers'),
  [
    ({}, (0, 1), 'the initial values and the data order, which change together from seed to seed'),
    ({'data.seed': 7}, (0, 1), 'the initial values only'),
    ({'run.init_seed': 7}, (0, 1), 'the data order only'),
    ({}, (0,), None),
  ],
)
def test_the_table_says_what_the_intervals_cover(tmp_path, changes, seeds, covers):
  experiment = Experiment('?', {'baseline': {}, 'relu': {'model.feed_forward': 'relu'}}, name='x', seeds=seeds)
  levels = {'baseline': 2.9, 'relu': 3.0}
  summary = load_summary(
    experiment, fake_runs.write_experiment(tmp_path, experiment, levels, changes=changes, points=3)
  )
  assert summary['interval']['covers'] == covers
  said = (
    f'intervals cover {covers}; they do not cover' if covers else 'one seed gives neither an interval nor a verdict'
  )
  assert said in ' '.join(rendered_table(summary).split())


def test_runs_of_undeclared_variants_are_named_and_not_shown(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', points=3)
  experiment = Experiment('?', {'baseline': {}, 'relu': {'model.feed_forward': 'relu'}}, name='block')
  summary = load_summary(experiment, directory)
  assert list(summary['variants']) == ['baseline', 'relu']
  assert any('no_residual, post_norm' in note for note in summary['notes'])
  report.write(experiment, directory, COMMAND)
  with (directory / 'results.csv').open() as file:
    assert len(list(csv.DictReader(file))) == 20  # every run in the directory
  with pytest.raises(ConfigError, match='none of mine'):
    load_summary(Experiment('?', {'mine': {}}, name='block'), directory)


def test_a_synthetic_task_is_compared_in_nats(tmp_path):
  directory = fake_runs.write_experiment(
    tmp_path / 'copy',
    COPY,
    {'baseline': 0.3, 'post': 0.31, 'deep': 4.1},
    changes={'data.task': 'copy'},
    ngram_baselines={},
  )
  report.write(COPY, directory, 'python train.py --experiment=copy')
  summary = json.loads((directory / 'summary.json').read_text())
  assert summary['measure'] == {'column': 'val_loss', 'unit': 'nats a token', 'margin': 0.014, 'split': 'validation'}
  assert summary['yardsticks'] == {'unigram': 4.159}
  assert summary['variants']['post']['mean'] == pytest.approx(0.31, abs=0.05)
  deep = summary['variants']['deep']
  assert deep['sentence'].endswith('fan_in with DeepNorm scaling (baseline fan_in with depth scale)')
  page = (directory / 'report.html').read_text()
  assert 'nats a token' in page
  assert 'bits per byte' not in page


def test_a_report_distinguishes_tuned_and_shared_rates(tmp_path):
  experiment = Experiment(
    '?', {'baseline': {}, 'post': {'model.connection': 'post', 'optimizer.learning_rate': 2e-3}}, name='x'
  )
  levels = {'baseline': 2.9, 'post': 2.8}
  fake_runs.write_experiment(tmp_path / 'tuned', experiment, levels, points=3, tuned=True)
  tuned = load_summary(experiment, tmp_path / 'tuned')
  assert 'at learning rate 2e-3 (tuned; baseline 4e-3)' in tuned['variants']['post']['sentence']
  assert 'learning rate (4e-3, 2e-3)' in tuned['not_held_equal']
  assert 'tuning budget for the learning rate' not in tuned['held_equal'], 'there is no tuning'
  assert 'tuning of the learning rate' in tuned['not_held_equal']
  fake_runs.write_experiment(tmp_path / 'set', experiment, levels, points=3)
  by_hand = load_summary(experiment, tmp_path / 'set')
  assert 'at learning rate 2e-3 (baseline 4e-3)' in by_hand['variants']['post']['sentence']


def test_names_of_a_sweep_are_broken_at_the_plus(tmp_path):
  experiment = Experiment(
    '?',
    {'connection=pre+learning_rate=0.001': {}, 'connection=post+learning_rate=0.001': {'model.norm': 'layer'}},
    name='custom',
    seeds=(0, 1),
  )
  levels = dict.fromkeys(experiment.variants, 2.9)
  said = rendered_table(load_summary(experiment, fake_runs.write_experiment(tmp_path, experiment, levels, points=3)))
  assert ' connection=post ' in said
  assert ' +learning_rate=0.001 ' in said
  assert 'minus baseline' in said
