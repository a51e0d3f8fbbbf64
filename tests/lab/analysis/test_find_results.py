"""Results count only at the location that they name."""

import dataclasses
import os
import shutil
import warnings

import fake_runs
import pytest
from summaries import load_summary

from lab.analysis import find_results, results
from lab.core.experiment import Experiment
from training.config import ConfigError
from training.run_files.result import read_result, write_result

TWO = Experiment('?', {'baseline': {}, 'relu': {'model.feed_forward': 'relu'}}, name='block', seeds=(0, 1, 2))
LEVELS = {'baseline': 2.9, 'relu': 3.0}


@pytest.fixture
def workdir(tmp_path):
  fake_runs.write_experiment(tmp_path / 'runs/block', TWO, LEVELS, points=2)
  return tmp_path / 'runs'


def copy_of(source, target):
  target.parent.mkdir(parents=True, exist_ok=True)
  shutil.copytree(source, target, symlinks=True)


def link_to(source, target):
  target.symlink_to(source, target_is_directory=True)


MISPLACED = {  # the folder that a user copies or moves, its new name, and a part of the note about it
  'moved aside': ('baseline/seed_0', 'baseline/seed_0_old', 'baseline/seed_0_old holds the result of block/baseline/'),
  'a copy of a file manager': ('baseline/seed_1', 'baseline/seed_1 (copy)', 'seed_1 (copy) holds the result of'),
  'another number of digits': ('baseline/seed_2', 'baseline/seed_02', 'seed_02 holds the result of'),
  'under another seed': ('relu/seed_1', 'relu/seed_7', 'relu/seed_7 holds the result of block/relu/seed_1'),
  'under another variant': ('relu/seed_1', 'baseline/seed_5', 'baseline/seed_5 holds the result of block/relu/seed_1'),
  'in a subfolder': ('relu/seed_1', 'relu/old/seed_1', 'relu/old/seed_1 holds the result of'),
  'in a sibling folder': ('relu/seed_1', 'old/seed_1', 'old/seed_1 holds the result of'),
  'inside a run': ('relu/seed_1', 'relu/seed_1/seed_1', 'relu/seed_1/seed_1 holds the result of'),
  'a variant renamed': ('relu', 'relu_old', 'relu_old/seed_2 holds the result of block/relu/seed_2'),
  'directly in the experiment': ('relu/seed_1', 'seed_1', 'seed_1 holds the result of'),
}


@pytest.mark.parametrize(
  ('case', 'how'),
  [(case, copy_of) for case in MISPLACED] + [(case, link_to) for case in ('under another seed', 'a variant renamed')],
)
def test_misplaced_results_are_reported_and_not_counted(case, how, workdir):
  source, target, message = MISPLACED[case]
  before = load_summary(TWO, workdir / 'block')
  (workdir / 'block' / target).parent.mkdir(parents=True, exist_ok=True)
  how(workdir / 'block' / source, workdir / 'block' / target)
  after = load_summary(TWO, workdir / 'block')
  assert after['variants'] == before['variants']
  assert any(note.startswith('not counted: ') and message in note for note in after['notes']), after['notes']
  with pytest.warns(UserWarning, match='not counted: ') as warned:
    assert len(results.load(workdir)) == len(results.load(workdir / 'block')) == 6
  assert any(message in str(warning.message) for warning in warned)


def test_a_run_moved_aside_is_a_missing_seed(workdir):
  run = workdir / 'block/baseline/seed_0'
  run.rename(run.with_name('seed_0_old'))
  summary = load_summary(TWO, workdir / 'block')
  assert list(summary['variants']['baseline']['seeds']) == ['1', '2']
  assert 'baseline: no finished run of seed 0' in summary['notes']


def test_an_experiment_copied_into_another_is_reported_in_one_line(workdir):
  other = dataclasses.replace(TWO, name='other')
  fake_runs.write_experiment(workdir / 'other', other, LEVELS, points=2)
  copy_of(workdir / 'block', workdir / 'block_old')
  for source, target in (('block_old', 'block/block'), ('other', 'block/other'), ('block_old', 'block/of_before')):
    copy_of(workdir / source, workdir / target)
  notes = load_summary(TWO, workdir / 'block')['notes']
  assert [note.partition(' (')[0] for note in notes] == [
    f'not counted: 6 misplaced results in {name}' for name in ('block', 'of_before', 'other')
  ]
  with warnings.catch_warnings(record=True):
    warnings.simplefilter('always')
    frame = results.load(workdir)
  assert frame.groupby(['experiment', 'variant']).size().tolist() == [3, 3, 3, 3]


def test_results_of_another_experiment_in_the_same_folders_are_not_counted(workdir):
  """The runs of `other` were copied file by file into the folder of `block`."""
  other = dataclasses.replace(TWO, name='other', seeds=(5, 6))
  fake_runs.write_experiment(workdir / 'block', other, LEVELS, points=2)
  summary = load_summary(TWO, workdir / 'block')
  assert list(summary['variants']['relu']['seeds']) == ['0', '1', '2']
  assert sum('holds the result of other/' in note for note in summary['notes']) == 4


def test_the_directory_that_is_loaded_may_have_been_renamed(workdir):
  for name, runs in (('block', 6), ('block_old', 6), ('block_old/relu', 3), ('block_old/relu/seed_1', 1)):
    if name == 'block_old':
      (workdir / 'block').rename(workdir / 'block_old')
    assert len(results.load(workdir / name)) == runs
  (workdir / 'block_old/relu/seed_1').rename(workdir / 'mine')
  assert results.load(workdir / 'mine')['variant'].tolist() == ['relu']


def test_nested_work_directories_are_separate(workdir):
  fake_runs.write_experiment(workdir / 'shakespeare/block', TWO, LEVELS, points=2)
  assert len(results.load(workdir)) == len(results.load(workdir / 'shakespeare')) == 6
  assert len(results.load(workdir, workdir / 'shakespeare')) == 12
  with pytest.raises(ConfigError, match=r'has no finished run \(runs is a separate work directory\)'):
    results.load(workdir.parent)


def test_a_run_in_several_directories_counts_once(workdir, tmp_path, monkeypatch):
  fake_runs.write_experiment(tmp_path / 'later/block', TWO, {'baseline': 2.9}, points=2)
  link_to(workdir, tmp_path / 'link')
  monkeypatch.chdir(tmp_path)
  frame = results.load('runs', 'later', 'link', 'runs/block/relu', str(tmp_path / 'later/../runs'))
  assert frame['workdir'].tolist() == ['runs'] * 6 + ['later'] * 3
  assert frame['directory'].iloc[0] == os.path.join('runs', 'block', 'baseline', 'seed_0')
  assert frame.columns[-2:].tolist() == ['workdir', 'directory']
  with pytest.raises(ConfigError, match='needs a directory'):
    results.load()


def test_a_cycle_of_links_ends(workdir):
  link_to(workdir, workdir / 'block/relu/up')
  assert len(find_results.find_results(workdir).records) == 6


@pytest.mark.parametrize('wrong', [{'seed': '0'}, {'variant': None}, {'experiment': 5}])
def test_a_result_without_a_valid_variant_seed_or_experiment_is_damaged(workdir, wrong):
  run = workdir / 'block/relu/seed_1'
  write_result(run, (read_result(run) or {}) | wrong)
  with pytest.raises(ConfigError, match=rf'seed_1/result\.json is damaged \({next(iter(wrong))} is '):
    results.load(workdir)
  (workdir / 'block/relu/seed_1').rename(workdir / 'block/relu/aside')
  assert any('relu/aside' in note for note in load_summary(TWO, workdir / 'block')['notes'])
