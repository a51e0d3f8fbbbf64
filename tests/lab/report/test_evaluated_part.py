"""Reports of losses that were measured on a part of the held-out splits."""

from pathlib import Path

import fake_runs
import pytest
from summaries import load_summary, rendered_table

from training.run_files.result import read_result, write_result

pytestmark = pytest.mark.usefixtures('svg_only')

PART = {
  'final_evaluation_tokens': 524_288, 'val_tokens': 524_256, 'val_tokens_of': 3_194_685, 'test_tokens': 524_256,
  'test_tokens_of': 3_178_302,
}  # fmt: skip


@pytest.fixture
def directory(tmp_path) -> Path:
  return fake_runs.write_experiment(tmp_path / 'block', levels={'baseline': 2.9, 'relu': 2.8}, points=2)


def measured_on(part: dict, *runs: Path) -> None:
  for run in runs:
    write_result(run, (read_result(run) or {}) | part)


def test_a_report_states_the_scored_part(directory):
  measured_on(PART, *directory.glob('*/seed_*'))
  summary = load_summary(fake_runs.BLOCK, directory)
  (note,) = (note for note in summary['notes'] if 'subset' in note)
  assert note.startswith('losses are measured on a fixed, evenly spread subset of the validation split: 524,256 of')
  assert 'fixed, evenly spread subset of the validation split' in ' '.join(rendered_table(summary).split())
  assert summary['variants']['relu']['comparison'] is not None
  assert summary['yardsticks'] == {}  # the stored baselines belong to the whole split


def test_whole_splits_have_no_note(directory):
  measured_on(PART | {'val_tokens': 3_194_685, 'test_tokens': 3_178_302}, *directory.glob('*/seed_*'))
  summary = load_summary(fake_runs.BLOCK, directory)
  assert not [note for note in summary['notes'] if 'subset' in note]
  assert summary['yardsticks'] == fake_runs.NGRAM_BASELINES


def test_losses_of_different_parts_are_not_compared(directory):
  measured_on(PART, *(directory / 'relu').glob('seed_*'))
  relu = load_summary(fake_runs.BLOCK, directory)['variants']['relu']
  assert relu['comparison'] is None
  assert 'run.final_evaluation_tokens is 524288 (baseline 0)' in relu['sentence']


def test_losses_of_different_parts_are_not_pooled(directory):
  measured_on(PART, directory / 'relu' / 'seed_0')
  relu = load_summary(fake_runs.BLOCK, directory)['variants']['relu']
  assert (relu['mean'], relu['comparison']) == (None, None)
  assert 'run.final_evaluation_tokens is 524288 in seed 0' in relu['sentence']


def test_a_diverged_run_without_a_scored_part_is_comparable(tmp_path):
  statuses = {('relu', 0): 'diverged'}
  directory = fake_runs.write_experiment(
    tmp_path / 'block', levels={'baseline': 2.9, 'relu': 2.8}, points=2, statuses=statuses
  )
  measured_on(PART, *directory.glob('*/seed_*'))
  measured_on(PART | {'val_tokens': None, 'test_tokens': None}, directory / 'relu' / 'seed_0')
  assert load_summary(fake_runs.BLOCK, directory)['variants']['relu']['comparison'] is not None
