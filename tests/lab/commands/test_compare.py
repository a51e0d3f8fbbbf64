"""--compare, --labels and --variants on finished runs: reports without training."""

import json
import shutil

import fake_runs
import pandas as pd
import pytest
from fake_runs import edit_runs
from in_process import run_main

from lab.commands import compare, run_experiment
from lab.commands.compare import RunGroup
from lab.core import names
from lab.core.experiment import Experiment
from lab.core.run import Run
from lab.figures import labels
from lab.report import report
from training.config import Config, ConfigError

pytestmark = pytest.mark.usefixtures('svg_only')

BLOCK = Experiment('?', {**{name: fake_runs.BLOCK.variants[name] for name in ('baseline', 'post_norm', 'relu')}},
                   name='block', seeds=(0, 1))  # fmt: skip
MINE = Experiment('?', {'mine': {'model.norm': 'layer', 'run.steps': 100}}, name='custom', seeds=(0, 1))
LEVELS = {'baseline': 2.9, 'post_norm': 2.8, 'relu': 3.0}


@pytest.fixture
def root(tmp_path, monkeypatch):
  """Two work directories, each with an experiment, and a custom run in one of them."""
  fake_runs.write_experiment(tmp_path / 'runs/block', BLOCK, LEVELS, points=2)
  fake_runs.write_experiment(tmp_path / 'runs/custom', MINE, {'mine': 2.7}, points=2)
  fake_runs.write_experiment(tmp_path / 'later/block', BLOCK, {'baseline': 2.6}, points=2)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def summary_of(folder):
  return json.loads((folder / 'summary.json').read_text())


def test_runs_of_two_experiments_are_compared(root, capsys):
  assert run_main('--compare=runs/block/baseline,runs/custom/mine') == 0
  folder = root / 'runs/compare/block-baseline+custom-mine'
  summary = summary_of(folder)
  assert (summary['baseline'], list(summary['variants'])) == ('baseline', ['baseline', 'mine'])
  mine = summary['variants']['mine']
  assert mine['comparison']['difference'] == pytest.approx(-0.2, abs=0.05)
  assert mine['differs_in'] == ['model.norm', 'run.steps']
  output = ' '.join(capsys.readouterr().out.split())
  assert 'differs from the baseline in model.norm, run.steps' in output
  assert output.endswith('runs/compare/block-baseline+custom-mine/report.html')
  assert 'initial values of parameters with the same path and shape, by seed' in summary['held_equal']
  frame = pd.read_csv(folder / 'results.csv')
  assert frame[['experiment', 'variant']].drop_duplicates().to_numpy().tolist() == [
    ['block', 'baseline'], ['custom', 'mine'],
  ]  # fmt: skip
  assert set(frame.pooled) == {'yes'}


def test_one_experiment_in_two_work_directories(root):
  assert run_main('--compare=runs/block,later/block', '--name=both') == 0
  summary = summary_of(root / 'runs/compare/both')
  assert list(summary['variants']) == ['runs/baseline', 'runs/post_norm', 'runs/relu', 'later/baseline']
  frame = pd.read_csv(root / 'runs/compare/both/results.csv')
  assert frame.iloc[[0, -1]][['variant', 'label']].to_numpy().tolist() == [
    ['baseline', 'runs/baseline'], ['baseline', 'later/baseline'],
  ]  # fmt: skip
  assert 'differs from the baseline in no setting' in summary['variants']['later/baseline']['sentence']


def test_runs_that_are_reached_twice_and_copies_count_once(root):
  (root / 'link').symlink_to(root / 'runs')
  edit_runs(root / 'runs/block', 'relu', [1], {'run.init_seed': 0, 'data.seed': 0})
  found = compare.load(['runs/block/relu', 'link/block', 'runs/block/relu/seed_0'], 'x')
  assert {name: [run.seed for run in found.of(name)] for name in found.variants} == {
    'relu': [0], 'baseline': [0, 1], 'post_norm': [0, 1],
  }  # fmt: skip
  assert any('relu: seed 1 repeats seed 0' in note for note in found.notes)


def test_renamed_runs_are_compared_with_the_new_ones_and_not_pooled_with_them(root):
  """As after `mv relu relu_old`, and for a single seed; their results still name `relu`."""
  block = root / 'runs/block'
  shutil.copytree(block / 'relu', block / 'relu_old')
  shutil.copytree(block / 'relu/seed_1', block / 'relu/seed_1_old')
  edit_runs(block, 'relu_old', [0, 1], {'run.steps': 30})
  found = compare.load(['runs/block/relu', 'runs/block/relu_old', 'runs/block/relu/seed_1_old'], 'x')
  assert {name: [run.seed for run in found.of(name)] for name in found.variants} == {
    'relu': [0, 1], 'relu_old': [0, 1], 'relu/seed_1_old': [1],
  }  # fmt: skip
  assert [record['steps'] for record in found.records] == [300, 300, 30, 30, 300]


REFUSED = {
  'another text': ({}, {'data_checksum': 'f00d' * 16}, 'the data checksum is f00df00d (baseline b2c26b87)'),
  'random numbers': (
    {},
    {'settings': {'jax_default_prng_impl': 'rbg'}},
    'the setting jax_default_prng_impl is rbg (baseline threefry2x32)',
  ),
  'another order': ({'data.seed': 7}, {}, 'data.seed is 7 (baseline 0 in seed 0, 1 in seed 1)'),
}


@pytest.mark.parametrize('case', REFUSED)
def test_incomparable_runs_are_not_compared(root, case):
  config, result, reason = REFUSED[case]
  edit_runs(root / 'runs/custom', 'mine', [0, 1], config, result)
  found = compare.load(['runs/block/baseline', 'runs/custom'], 'x')
  assert found.not_comparable == {'mine': (reason,)}


def test_seeds_of_a_variant_must_share_their_settings(root):
  edit_runs(root / 'runs/custom', 'mine', [1], {'run.steps': 30})
  found = compare.load(['runs/block/baseline', 'runs/custom'], 'x')
  assert found.not_comparable == {'mine': ('run.steps is 100 in seed 0, 30 in seed 1',)}


def test_a_missing_seed_is_reported(root):
  shutil.rmtree(root / 'runs/custom/mine/seed_1')
  assert compare.load(['runs/block/baseline', 'runs/custom'], 'x').notes == ('mine: no finished run of seed 1',)


@pytest.mark.parametrize(
  ('ours', 'theirs', 'paths', 'same'),
  [('a' * 64, 'a' * 64, 'x.txt', True), ('a' * 64, 'b' * 64, '', False), (None, 'b' * 64, '', True),
   (None, None, 'x.txt', False)],
)  # fmt: skip
def test_runs_with_other_tokens_are_compared_if_the_text_is_the_same(root, ours, theirs, paths, same):
  """Another tokenizer changes the data checksum in any case, and a text may change without its paths."""
  config = {'data.tokenizer': 'x.json', 'data.paths': paths}
  edit_runs(root / 'runs/custom', 'mine', [0, 1], config, {'data_checksum': 'f00d' * 16})
  for folder, variant, text in (('block', 'baseline', ours), ('custom', 'mine', theirs)):
    edit_runs(root / 'runs' / folder, variant, [0, 1], result={'text_checksum': text} if text else {})
  found = compare.load(['runs/block/baseline', 'runs/custom'], 'x')
  assert found.not_comparable == ({} if same else {'mine': ('the data checksum is f00df00d (baseline b2c26b87)',)})


@pytest.mark.parametrize(
  ('groups', 'expected'),
  [
    ([('/w', 'block', 'a'), ('/w', 'custom', 'b')], ['a', 'b']),
    ([('/w', 'block', 'a'), ('/w', 'custom', 'a')], ['block/a', 'custom/a']),
    ([('/w', 'block', 'a'), ('/v', 'block', 'a')], ['w/a', 'v/a']),
    ([('/w', 'block', 'a'), ('/w/later', 'block', 'a')], ['w/a', 'later/a']),
    (
      [('/w', 'block', 'a'), ('/v', 'block', 'a'), ('/v', 'custom', 'a')],
      ['w/block/a', 'v/block/a', 'v/custom/a'],
    ),
  ],
)
def test_names_are_as_short_as_possible(groups, expected):
  assert compare.distinct_names([RunGroup(*group) for group in groups]) == expected


def test_a_comparison_of_many_directories_has_a_short_name():
  many = [f'runs/block_{k}/baseline' for k in range(40)]
  assert len(compare.comparison_name(many)) < 100
  assert compare.comparison_name(many) != compare.comparison_name(many[:-1])
  names.check_experiment_name(compare.comparison_name(['/', '../..', 'a b/c$']))


MISTAKES = {
  'nothing there': (['--compare=nowhere'], 'there is no directory nowhere'),
  'no runs': (['--compare=runs/block/baseline,empty'], 'empty has no finished run'),
  'no directory': (['--compare=,'], '--compare: list the directories'),
  'training': (['--compare=runs', '--experiment=block'], 'omit --experiment'),
  'settings': (['--compare=runs', '--config.run.steps=3'], 'omit --config'),
  'a name': (['--compare=runs', '--name=../x'], "the name '../x'"),
  'labels': (
    ['--compare=runs/block', '--labels=post=x'],
    "in --labels 'post': did you mean 'post_norm'",
  ),
}


@pytest.mark.parametrize('case', MISTAKES)
def test_an_invalid_comparison_is_reported_in_one_line(case, root, capfd):
  (root / 'empty').mkdir()
  arguments, message = MISTAKES[case]
  assert run_main(*arguments) == 2
  error = capfd.readouterr().err
  assert (error.count('\n'), message in error) == (1, True), error
  assert not (root / 'runs/compare').exists()


def test_labels_are_parsed():
  variants = ('baseline', 'connection=pre', 'connection=pre+norm=rms')
  given = ['baseline=a=b', 'connection=pre=Pre', 'connection=pre+norm=rms= Both ']
  assert labels.parse_labels(given, variants) == {
    'baseline': 'a=b', 'connection=pre': 'Pre', 'connection=pre+norm=rms': 'Both',
  }  # fmt: skip
  for wrong, message in (
    ('baseline', 'cannot read'), ('base=x', "did you mean 'baseline'"), ('baseline=', 'printable'),
    ('baseline=\u540e', 'the font of the figures has no'),
    ('baseline=a\nb', 'printable'), ('baseline=$x$', 'printable'), ('baseline=connection=pre', 'two variants'),
  ):  # fmt: skip
    with pytest.raises(ConfigError, match=message):
      labels.parse_labels([wrong], variants)


def test_labels_are_in_figures_and_files_next_to_the_folder_names(root):
  directory = root / 'runs/block'
  shown = {'baseline': 'Pre-Norm', 'post_norm': 'Post-LN & co'}
  edit_runs(directory, 'relu', [0], {'run.steps': 30})
  summary, _ = report.write(BLOCK, directory, 'python train.py', None, shown)
  assert summary['baseline'] == 'Pre-Norm'
  assert {label: entry['name'] for label, entry in summary['variants'].items()} == {
    'Pre-Norm': 'baseline', 'Post-LN & co': 'post_norm', 'relu': 'relu',
  }  # fmt: skip
  assert summary['variants']['relu']['verdict'] == 'not comparable'
  assert summary['variants']['Post-LN & co']['comparison']
  frame = pd.read_csv(directory / 'results.csv')
  assert frame.groupby('variant').label.first().to_dict() == {**shown, 'relu': 'relu'}
  assert 'Post-LN &amp; co' in (directory / 'report.html').read_text()
  assert 'Pre-Norm' in (directory / 'figures/final_loss_by_variant.svg').read_text()
  verdicts = pd.read_csv(directory / 'verdicts.csv')
  assert verdicts[['variant', 'name']].iloc[1].tolist() == ['Post-LN & co', 'post_norm']


def test_only_the_requested_variants_are_shown_if_all_runs_are_finished(root, monkeypatch):
  written = []

  def write(experiment, directory, command, tuning, shown):
    written.append((list(experiment.variants), shown))
    raise ConfigError('enough')

  monkeypatch.setattr(report, 'write', write)
  monkeypatch.setattr(run_experiment.ngram_baselines, 'write_if_outdated', lambda *_: None)
  for unfinished, variants in ((['one'], ()), (['one'], ('relu',)), ([], ()), ([], ('relu',)), (['one'], ('relu',))):
    if len(written) == 4:
      shutil.rmtree(root / 'runs/block/post_norm')  # it has no runs and is not requested
    trained = run_experiment.TrainingOutcome(None, unfinished, [], None)
    monkeypatch.setattr(run_experiment, 'train_runs', lambda *_, trained=trained: trained)
    run = Run('block', 'relu', 0, Config(), root / 'runs/block/relu/seed_0')
    with pytest.raises(ConfigError, match='enough'):
      run_experiment.run_experiment(
        BLOCK, [run], None, None, '', options=run_experiment.ReportOptions(variants, {'relu': 'ReLU'})
      )
  everything = (['baseline', 'post_norm', 'relu'], {'relu': 'ReLU'})
  fewer = (['baseline', 'relu'], {'relu': 'ReLU'})
  assert written == [everything, everything, everything, fewer, fewer]
