"""A run whose code changes between two starts: its result records that."""

import shutil

import pytest
from quick_runs import CONFIG, Stop, assert_same_run, stop_at, train

from training import provenance, resume
from training.code_version import DIGEST, code_version
from training.provenance import numerical_environment
from training.run_files import run_directory
from training.run_files.result import read_result

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('quick_programs', 'in_folder')]
OTHER, THIRD = '7' * 64, '9' * 64


def edit(monkeypatch, digest: str) -> None:
  """Pretends that the process has imported other code."""
  monkeypatch.setattr(resume, 'DIGEST', digest)
  for module in (resume, provenance):
    monkeypatch.setattr(module, 'code_version', lambda: code_version() | {'digest': digest, 'revision': None})


def test_a_run_records_the_code_that_trained_it(finished):
  _, result, reports = finished
  assert result['code'] == code_version()
  assert result['code_changed_at'] == []
  assert not [report for report in reports if 'note' in report]


def test_resuming_with_other_code_warns_and_is_recorded_in_the_result(finished, tmp_path, monkeypatch):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(15))
  with monkeypatch.context() as patch:
    edit(patch, OTHER)
    reports: list[dict] = []

    def report(progress):
      reports.append(progress)
      stop_at(30)(progress)

    with pytest.raises(Stop):
      train(tmp_path, report=report)
    (note,) = (one['note'] for one in reports if 'note' in one)
    assert note.startswith('the code of model/ or training/ has changed: trained up to step 12 by revision ')
    assert note.endswith('; from there by digest 77777777')
  reports = []
  result = train(tmp_path, report=reports.append)  # by this code again: the third section
  assert result['code'] == code_version()
  assert result['code_changed_at'] == [
    {'step': 12, 'digest': OTHER, 'before': DIGEST}, {'step': 24, 'digest': DIGEST, 'before': OTHER},
  ]  # fmt: skip
  assert next(one['note'] for one in reports if 'note' in one).count('up to step 24 by digest 77777777') == 1
  assert read_result(tmp_path) == result


def test_resuming_with_the_same_code_gives_no_warning(finished, tmp_path):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(30))
  reports: list[dict] = []
  train(tmp_path, report=reports.append)
  assert not [report for report in reports if 'note' in report]
  assert_same_run(tmp_path, finished[0])


def test_a_finished_run_is_not_trained_again_and_keeps_its_code_version(finished, tmp_path, monkeypatch):
  run = tmp_path / 'seed_0'
  shutil.copytree(finished[0], run)
  edit(monkeypatch, OTHER)
  assert run_directory.is_finished(run, CONFIG)
  assert (read_result(run) or {})['code'] == code_version()


def test_a_new_evaluation_with_other_code_is_recorded(finished, tmp_path, monkeypatch):
  run, reports = tmp_path / 'seed_0', []
  shutil.copytree(finished[0], run)
  (run / 'result.json').write_text('{')
  edit(monkeypatch, OTHER)
  result = train(run, report=reports.append)
  assert result['code']['digest'] == OTHER
  assert result['code_changed_at'] == [{'step': 40, 'digest': OTHER, 'before': DIGEST}]
  assert 'trained by' in [one['note'] for one in reports if 'note' in one][-1]
  assert [one['note'] for one in reports if 'note' in one][-1].endswith('; evaluated by digest 77777777')


def test_the_code_of_a_run_of_an_older_version_is_unknown():
  assert resume._code_changes(12, {}) == [{'step': 12, 'digest': DIGEST, 'before': None}]
  assert 'up to step 12 by a version that did not record its code' in resume._code_note(12, None, 40)


def test_resuming_under_other_settings_is_recorded_in_the_result(finished, tmp_path, monkeypatch):
  """As with JAX_DEFAULT_PRNG_IMPL=rbg; the result has both settings: initial values were drawn with the first."""
  assert finished[1]['environment_changed_at'] == []
  with monkeypatch.context() as patch:
    patch.setattr(
      resume,
      'numerical_environment',
      lambda: numerical_environment() | {'jax_default_prng_impl': 'rbg', 'XLA_OLD': '1'},
    )
    with pytest.raises(Stop):
      train(tmp_path, report=stop_at(15))
  result = train(tmp_path)
  changes = {'jax_default_prng_impl': ['rbg', 'threefry2x32'], 'XLA_OLD': ['1', None]}
  assert result['environment_changed_at'] == [{'step': 12, 'changes': changes}]
  assert resume._environment_changes(12, {}) == [], 'an older version did not record it'
