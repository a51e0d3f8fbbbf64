"""A work directory with finished runs that cannot be written to, or whose disk is full."""

import errno
import os

import pytest
from fake_runs import BLOCK, write_experiment
from rich.console import Console

from lab.commands import run_experiment, status
from lab.core import plan
from lab.launch import launchers
from lab.report import report
from training.config import Config

pytestmark = pytest.mark.usefixtures('svg_only')


@pytest.fixture
def runs(user_folder, monkeypatch):
  """The finished runs, as the same command plans them when it is run again."""
  write_experiment(user_folder / 'runs' / 'block')
  monkeypatch.setattr(run_experiment, '_load_data', lambda runs: None)
  monkeypatch.setattr(run_experiment.ngram_baselines, 'write_if_outdated', lambda *arguments: None)
  return plan.plan_runs(BLOCK, Config(), {}, user_folder / 'runs')


def content_of(folder):
  return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def run_again(runs) -> int:
  return run_experiment.run_experiment(BLOCK, runs, launchers.local_launcher(), Console(width=100), 'python train.py')


def read_only(folder) -> None:
  for path in [folder, *folder.rglob('*')]:
    path.chmod(0o555 if path.is_dir() else 0o444)


def test_the_report_of_a_read_only_workdir_is_its_table(runs, user_folder, capfd, request):
  before = content_of(user_folder)
  read_only(user_folder / 'runs')
  request.getfixturevalue('unprivileged')
  assert run_again(runs) == 1
  output, error = capfd.readouterr()
  assert 'post_norm' in output
  assert 'minus baseline' in output
  assert 'report not written, only the table above: ' in output
  assert 'could not be written (Permission denied)' in output
  assert error == ''
  assert content_of(user_folder) == before


def test_the_status_of_a_read_only_workdir_is_shown(runs, user_folder, capfd, request):
  read_only(user_folder / 'runs')
  request.getfixturevalue('unprivileged')
  assert status.print_status(runs, Console(width=100)) == 0
  assert f'{len(runs)} runs: ' in capfd.readouterr().out


@pytest.mark.parametrize('number', [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_report_that_cannot_be_written_is_its_table(runs, user_folder, capfd, monkeypatch, number):
  def fail(*arguments):
    raise OSError(number, os.strerror(number), str(user_folder / 'runs' / 'block' / 'results.csv'))

  monkeypatch.setattr(report.results, 'write_csv', fail)
  assert run_again(runs) == 1
  output, _ = capfd.readouterr()
  assert 'minus baseline' in output
  assert f'results.csv could not be written ({os.strerror(number)})' in output.replace('\n', '')
