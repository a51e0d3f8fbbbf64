"""The runs that --extend selects and their settings, on directories written here without training."""

import dataclasses

import made_result
import pytest
from in_process import run_main

from lab.analysis import tuned_learning_rates
from lab.commands import extend
from lab.core import plan, registry
from lab.core.experiment import Experiment
from training.config import Config, ConfigError
from training.run_files import run_directory

pytestmark = pytest.mark.usefixtures('svg_only')


def write(runs, finished: bool = True):
  """Writes the files of finished or stopped runs."""
  for run in runs:
    run_directory.prepare(run.directory, run.config)
    if finished:
      made_result.finish(run.directory, 'completed', learning_rate_tuned=run.tuned)
  return runs


@pytest.fixture
def block(tmp_path, monkeypatch):
  """The runs of `block` as planned by the first `python train.py`, at the committed learning rates."""
  monkeypatch.chdir(tmp_path)
  experiment = dataclasses.replace(registry.find_experiment('block'), seeds=(0, 1))
  found = tuned_learning_rates.find_tuning('block', tmp_path / 'runs')
  return tuned_learning_rates.plan_at_tuned_rates(experiment, Config(), {}, tmp_path / 'runs', found)


@pytest.mark.parametrize('which', [[], ['--experiment=block']])
def test_the_main_command_extends_its_own_runs_at_the_rates_they_had(block, launched, which):
  write(block[:6])
  write(block[6:], finished=False)  # a stopped run has no result that records its tuning
  assert run_main('--config.run.steps=600', '--extend', *which) == 0
  ((experiment, runs, tuning),) = launched
  assert experiment.name == 'block'
  assert {run.directory.resolve() for run in runs} == {run.directory for run in block}
  before = {run.directory: run for run in block}
  for run in runs:
    original = before[run.directory.resolve()]
    assert run.config == original.config.replace({'run.steps': 600})
    assert run.tuned
  assert len({run.config.optimizer.learning_rate for run in runs}) > 1
  assert tuning is not None


def test_runs_at_an_untuned_rate_stay_untuned(block, launched):
  rate = {'optimizer.learning_rate': 0.00123}
  write([dataclasses.replace(run, config=run.config.replace(rate), tuned=False) for run in block])
  assert run_main('--config.run.steps=600', '--extend') == 0
  ((_, runs, tuning),) = launched
  assert {run.config.optimizer.learning_rate for run in runs} == {0.00123}
  assert not any(run.tuned for run in runs)
  assert tuning is None


def test_the_same_command_again_resumes_a_partial_extension(block, launched):
  longer = [dataclasses.replace(run, config=run.config.replace({'run.steps': 600})) for run in block]
  write(longer[:3])
  write(longer[3:5], finished=False)
  write(block[5:])
  assert run_main('--config.run.steps=600', '--extend') == 0
  ((_, runs, _),) = launched
  assert {run.config.run.steps for run in runs} == {600}
  assert sum(run_directory.is_finished(run.directory, run.config) for run in runs) == 3
  assert all(run.tuned for run in runs)


def test_only_the_requested_variants_and_seeds_are_extended(block, launched):
  write(block)
  assert run_main('--config.run.steps=600', '--extend', '--variants=relu', '--seeds=1') == 0
  ((_, runs, _),) = launched
  assert [run.label for run in runs] == ['block/relu/seed_1']


def test_inspection_may_change(block, launched):
  write(block)
  assert run_main('--config.run.steps=600', '--extend', '--config.inspect.level=off') == 0
  assert {run.config.inspect.level for run in launched[0][1]} == {'off'}


REFUSED = {
  'no steps': ([], 'set the number of steps, as in --config.run.steps=600: the runs of block have 300'),
  'fewer': (['--config.run.steps=100'], 'holds a run of 300 steps, more than the requested 100'),
  'a rate': (
    ['--experiment=block', '--config.run.steps=600', '--config.optimizer.learning_rate=0.1'],
    'but 0.1 is requested: --extend changes only the number of steps; omit --config.optimizer.learning_rate',
  ),
  'a shared rate': (['--config.run.steps=600', '--shared_learning_rate=0.1'], '--extend changes only the number of'),
  'a seed': (['--config.run.steps=600', '--seeds=0,7'], 'no run of block with seed 7 to extend'),
  'another experiment': (['--experiment=heads', '--config.run.steps=600'], 'no run of heads to extend; existing runs'),
  'a name': (['--name=long', '--config.run.steps=600'], 'no run of custom to extend; existing runs: block (8'),
  'a custom one': (['--connection=post', '--config.run.steps=600'], 'no run of connection=post to extend'),
}  # fmt: skip


@pytest.mark.parametrize('name', REFUSED)
def test_an_impossible_extension_is_reported_in_one_line(block, launched, name, capfd):
  write(block)
  arguments, message = REFUSED[name]
  assert run_main('--extend', *arguments) == 2
  output, error = capfd.readouterr()
  assert (output, error.count('\n')) == ('', 1)
  assert message in error
  assert launched == []


def test_an_empty_workdir_has_nothing_to_extend(tmp_path, monkeypatch, capfd):
  monkeypatch.chdir(tmp_path)
  for arguments in (['--name=long'], [], ['--experiment=heads'], ['--noresidual']):
    assert run_main('--extend', '--config.run.steps=600', *arguments) == 2
    assert '--extend: no run of ' in capfd.readouterr().err
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ('first', 'then'),
  [
    (['--connection=post'], ['--connection=post', '--config.run.steps=600']),
    (['--connection=post', '--config.run.steps=40'], ['--connection=post', '--config.run.steps=600']),
    (['--name=mine', '--connection=post'], ['--name=mine', '--config.run.steps=600']),
    (['--name=mine', '--connection=post', '--config.run.steps=40'], ['--name=mine', '--config.run.steps=600']),
    (['--name=mine', '--seeds=3,4'], ['--name=mine', '--config.run.steps=600']),
  ],
)
def test_a_custom_run_is_found_by_its_changes(tmp_path, monkeypatch, launched, first, then):
  monkeypatch.chdir(tmp_path)
  assert run_main(*first) == 0
  before = write(launched.pop()[1])
  assert run_main(*then, '--extend') == 0
  ((experiment, runs, _),) = launched
  assert experiment.name == 'custom'
  assert [run.config for run in runs] == [run.config.replace({'run.steps': 600}) for run in before]
  assert [run.directory for run in runs] == [run.directory for run in before]


def test_a_damaged_run_is_named(block, launched, capfd):
  write(block)
  (block[0].directory / 'config.json').write_text('{')
  assert run_main('--extend', '--config.run.steps=600') == 2
  assert 'config.json is damaged' in capfd.readouterr().err


def test_a_run_keeps_a_config_that_its_experiment_no_longer_declares(tmp_path):
  experiment = Experiment(name='trial', question='?', variants={'a': {}, 'b': {'model.num_layers': 3}}, seeds=(0,))
  write(plan.plan_runs(experiment, Config(), {}, tmp_path))
  changed = dataclasses.replace(experiment, base={'optimizer.clip': 0.5})
  longer = {'run.steps': 600}
  planned = plan.plan_runs(changed, Config(), longer, tmp_path)
  runs = extend.plan_extension(changed, planned, longer, tmp_path, any_seed=True)
  assert {run.config.optimizer.clip for run in runs} == {1.0}
  with pytest.raises(ConfigError, match='no run of other to extend'):
    extend.plan_extension(dataclasses.replace(changed, name='other'), planned, longer, tmp_path, any_seed=True)
