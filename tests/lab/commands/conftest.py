"""Fixtures of the tests of commands."""

import pytest

from lab.core import plan


@pytest.fixture
def launched(monkeypatch):
  """The experiment, runs and tuning of each call of run_experiment, which trains nothing."""
  calls = []

  def run_experiment(experiment, runs, launcher, console, command, extend, tuning, joins, options):
    plan.check_directories(runs, extend, joins)
    calls.append((experiment, list(runs), tuning))
    return 0

  monkeypatch.setattr('lab.commands.run_experiment.run_experiment', run_experiment)
  return calls
