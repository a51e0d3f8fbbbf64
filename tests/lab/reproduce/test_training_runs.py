"""Reproductions measured in training runs: from the experiment, through real workers, to the record."""

import dataclasses
import io
import math
import shutil

import fake_runs
import pytest
from rich.console import Console

from lab.cli import signals
from lab.core import plan, registry
from lab.reproduce import command, record, reproduction_report, training_runs
from lab.reproduce.claim_verdict import compare_all
from training.config import ConfigError
from training.files import read_json, write_json
from training.run_files.result import read_result, write_result

TINY = {
  'model.num_layers': 2, 'model.d_model': 16, 'model.unroll': 1, 'data.sequence_length': 16, 'run.steps': 6,
  'run.batch_size': 2, 'run.evaluations': 2, 'run.evaluation_batches': 2, 'optimizer.warmup_steps': 2,
  'data.task': 'associative_recall',
}  # fmt: skip


@pytest.fixture
def two_seeds(monkeypatch):
  """The reproduction `initialisation` at the smallest sizes, with two seeds."""
  experiment = registry.find_experiment('initialisation')
  monkeypatch.setattr(registry, 'find_experiment', lambda name: plan.select(experiment, [], [0, 1]))
  reproduction = registry.find_reproduction('initialisation')
  return dataclasses.replace(reproduction, settings=TINY, full={'run.batch_size': 4})


@pytest.mark.slow
def test_a_reproduction_is_measured_in_the_runs_it_trains(two_seeds, tmp_path):
  content = training_runs.train_and_measure(two_seeds, 'small', tmp_path, Console(file=io.StringIO()))
  finals = [
    read_json(tmp_path / f'initialisation/{placement}_depth_scale_0.004/seed_1/result.json')['val_loss']
    for placement in ('pre', 'post')
  ]
  measured = record.to_json(content['measured'])
  assert measured['depth_scale'][1] == pytest.approx(finals[1] - finals[0])
  assert [comparison.seeds for comparison in compare_all(two_seeds, measured)] == [2, 2, 2]
  assert content['settings']['model.num_layers'] == 2
  assert 'run.init_seed' not in content['settings']
  assert content['seeds'] == [0, 1]
  assert len(content['data_checksum']) == 64
  repeated = training_runs.train_and_measure(two_seeds, 'small', tmp_path, Console(file=io.StringIO()))
  assert repeated['measured'] == content['measured'], 'finished runs are read, not trained again'


def test_a_failed_run_is_reported_with_the_command_to_repeat(two_seeds, tmp_path, monkeypatch):
  monkeypatch.setattr(training_runs, 'run_experiment', lambda *arguments: 1)
  with pytest.raises(ConfigError, match='--only=initialisation repeats the failed runs'):
    training_runs.train_and_measure(two_seeds, 'small', tmp_path, Console(file=io.StringIO()))


def test_a_stopped_experiment_exits_with_its_code(two_seeds, tmp_path, monkeypatch):
  monkeypatch.setattr(training_runs, 'run_experiment', lambda *arguments: signals.STOPPED)
  with pytest.raises(SystemExit) as stopped:
    training_runs.train_and_measure(two_seeds, 'small', tmp_path, Console(file=io.StringIO()))
  assert stopped.value.code == signals.STOPPED


def test_full_scale_trains_larger_models_in_another_directory(two_seeds, tmp_path, monkeypatch):
  planned = []
  monkeypatch.setattr(training_runs, 'run_experiment', lambda experiment, runs, *rest: planned.extend(runs) or 1)
  with pytest.raises(ConfigError, match='--scale=full'):
    training_runs.train_and_measure(two_seeds, 'full', tmp_path, Console(file=io.StringIO()))
  assert {run.config.run.batch_size for run in planned} == {4}
  assert {run.config.model.num_heads for run in planned} == {8}
  assert all(run.directory.is_relative_to(tmp_path / 'full') for run in planned)


@pytest.fixture
def copy_task(monkeypatch, tmp_path):
  """The reproduction `copy_task`, and a work directory with fake runs of two seeds."""
  experiment = registry.find_experiment('copy_task')
  monkeypatch.setattr(registry, 'find_experiment', lambda name: plan.select(experiment, [], [0, 1]))
  finals = {(name, seed): math.log(64) * (name == 'post') for name in experiment.variants for seed in (0, 1)}
  fake_runs.write_experiment(
    tmp_path / 'copy_task', registry.find_experiment('copy_task'), dict.fromkeys(experiment.variants, 1.0),
    finals=finals, changes=experiment.base, points=3, inspect=False,
  )  # fmt: skip
  return registry.find_reproduction('copy_task'), tmp_path


def test_the_time_is_given_per_run(copy_task):
  reproduction, workdir = copy_task
  content = {**training_runs.measure_runs(reproduction, 'small', workdir), 'seconds': 90.0}
  assert reproduction_report.ReproductionResult(reproduction, content, (), '').time == '6 runs of 15 s'
  del content['runs']
  assert reproduction_report.ReproductionResult(reproduction, content, (), '').time == '90 s'


def test_from_logs_reads_the_runs_if_they_exist(copy_task):
  reproduction, workdir = copy_task
  path = workdir / 'reproduce/copy_task/measured.json'
  content = training_runs.measure_runs(reproduction, 'small', workdir)
  assert record.to_json(content['measured'])['pre'] == [0, 0]
  assert content['seeds'] == [0, 1]
  write_json(path, {**content, 'measured': {**record.to_json(content['measured']), 'pre': [9.0, 9.0]}})
  options = command.ReproduceOptions(from_logs=True)
  again = command.obtain_record(options, reproduction, path.parents[1], Console(file=io.StringIO()))
  assert again['measured'] == record.to_json(content['measured'])
  before = path.read_bytes()
  shutil.rmtree(workdir / 'copy_task')
  assert command.obtain_record(options, reproduction, path.parents[1], Console(file=io.StringIO())) == again
  assert path.read_bytes() == before


@pytest.mark.parametrize('missing', ['result.json', 'metrics.jsonl'])
def test_an_incomplete_run_is_refused_with_the_command_to_run(copy_task, missing):
  reproduction, workdir = copy_task
  (workdir / 'copy_task/post/seed_1' / missing).unlink()
  with pytest.raises(ConfigError, match=f'post has no complete run of seed 1: train it with .* --workdir={workdir}'):
    training_runs.measure_runs(reproduction, 'small', workdir)


def test_runs_that_cannot_be_pooled_are_not_read(copy_task):
  reproduction, workdir = copy_task
  path = workdir / 'copy_task/post/seed_1/config.json'
  write_json(path, {**read_json(path), 'optimizer.weight_decay': 0.5})
  message = r'post cannot be pooled \(optimizer\.weight_decay is 0\.0 in seed 0, 0\.5 in seed 1\)'
  with pytest.raises(ConfigError, match=message):
    training_runs.measure_runs(reproduction, 'small', workdir)


def test_runs_with_other_settings_are_refused(copy_task):
  """The runs agree with each other: they are those of train.py --experiment=copy_task --config.run.steps=30."""
  reproduction, workdir = copy_task
  for run in (workdir / 'copy_task').glob('*/seed_*'):
    config = read_json(run / 'config.json')
    before = config['run.steps']
    write_json(run / 'config.json', {**config, 'run.steps': 30})
    write_result(run, {**(read_result(run) or {}), 'steps': 30})
  message = rf'with other settings than copy_task uses \(run.steps is 30 there, {before} here\): .*{workdir}_2$'
  with pytest.raises(ConfigError, match=message):
    training_runs.measure_runs(reproduction, 'small', workdir)


def test_additional_seeds_are_not_counted(copy_task):
  reproduction, workdir = copy_task
  before = training_runs.measure_runs(reproduction, 'small', workdir)
  for variant in registry.find_experiment('copy_task').variants:
    run, other = (workdir / 'copy_task' / variant / f'seed_{seed}' for seed in (0, 7))
    shutil.copytree(run, other)
    write_json(other / 'config.json', {**read_json(run / 'config.json'), 'run.init_seed': 7, 'data.seed': 7})
    write_result(other, {**(read_result(run) or {}), 'seed': 7, 'val_loss': 4.1})
  assert training_runs.measure_runs(reproduction, 'small', workdir) == before
