"""Time estimates, compared with numbers computed by hand."""

import io

import made_result
import pytest
from absl.testing import flagsaver
from rich.console import Console

from lab.cli.command_line import parse_flags
from lab.core import plan
from lab.core.experiment import Experiment
from lab.launch import devices, launchers, time_estimate, worker_pool
from lab.launch.devices import DetectedDevices, WorkerSlot
from model.counts import flops_per_token
from training.config import Config
from training.run_files import run_directory

CONFIG = Config().replace({'run.steps': 100, 'run.evaluations': 10, 'run.evaluation_batches': 4})
BATCH = CONFIG.run.batch_size * CONFIG.data.sequence_length
HERE = {'device': 'cpu (A CPU)', 'layout': '1 cpu device(s), 1 core(s)'}
ONE_CORE = [WorkerSlot(0, {}), WorkerSlot(1, {})]


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
  """Simulates a machine with two cores that multiplies matrices at 8 GFLOP/s."""
  monkeypatch.setattr(time_estimate, 'processor', lambda: 'A CPU')
  monkeypatch.setattr(time_estimate, 'cores', lambda: [0, 1])
  monkeypatch.setattr(time_estimate, 'matmul_flops_per_second', lambda threads: 4e9 * threads)
  monkeypatch.setattr(devices, 'detect_devices', lambda: DetectedDevices('cpu', 1, '', ''))


def planned(workdir, **variants):
  experiment = Experiment(name='trial', question='?', variants=variants, seeds=(0, 1))
  return plan.plan_runs(experiment, CONFIG, {}, workdir)


def test_training_validation_curve_and_final_evaluation_are_counted():
  curve, final = 10 * 4 * BATCH, 2 * time_estimate.KJV_SPLIT
  assert time_estimate.run_seconds(CONFIG, 1000.0) == pytest.approx((100 * BATCH + (curve + final) / 3) / 1000)
  assert time_estimate.run_seconds(CONFIG, 1000.0, resume_step=50) == pytest.approx(
    (50 * BATCH + (curve / 2 + final) / 3) / 1000
  )
  copy = CONFIG.replace({'data.task': 'copy'})
  assert time_estimate.run_seconds(copy, 1000.0) == pytest.approx((100 * BATCH + curve / 3) / 1000)
  bounded = CONFIG.replace({'data.task': 'files', 'data.paths': 'x', 'run.final_evaluation_tokens': 9000})
  assert time_estimate.run_seconds(bounded, 1000.0) == pytest.approx((100 * BATCH + (curve + 18000) / 3) / 1000)


@pytest.mark.parametrize(
  ('each', 'at_a_time', 'total'),
  [([5, 5, 5, 5], 2, 10), ([5, 5, 5], 2, 10), ([9, 1, 1, 1], 2, 9), ([3], 8, 3), ([1, 2, 3], 1, 6)],
)
def test_the_total_time_with_several_workers(each, at_a_time, total):
  assert time_estimate.total_seconds(each, at_a_time) == total


def test_the_speed_is_taken_from_comparable_finished_runs(tmp_path):
  runs = planned(tmp_path, small={'model.num_layers': 2}, fast={'model.num_layers': 2, 'optimizer.learning_rate': 1e-2})
  for run, speed in zip(runs[:3], (1000.0, 3000.0, 2000.0), strict=True):
    run_directory.prepare(run.directory, run.config)
    made_result.finish(run.directory, tokens_per_second=speed, **HERE)
  estimate = time_estimate.estimate_time(runs[3:], {}, ONE_CORE, tmp_path)
  assert estimate.seconds == pytest.approx(time_estimate.run_seconds(runs[3].config, 2000.0))
  assert estimate.basis == f'from 3 finished runs in {tmp_path}'
  assert estimate.sentence(1, 1) == (
    f'about {time_estimate.format_duration(estimate.seconds)} for 1 run, compilation not included ({estimate.basis})'
  )
  deep = planned(tmp_path, deep={'model.num_layers': 4}, deeper={'model.num_layers': 6})
  by_flops = time_estimate.estimate_time(deep[:1], {}, ONE_CORE, tmp_path).seconds
  ratio = flops_per_token(deep[0].config.model, 64) / flops_per_token(runs[0].config.model, 64)
  assert by_flops == pytest.approx(time_estimate.run_seconds(deep[0].config, 2000.0 / ratio))


@pytest.mark.parametrize(
  'toy',
  [
    {'model.num_layers': 1, 'model.d_model': 16, 'model.num_heads': 2},
    {'model.num_layers': 8, 'data.sequence_length': 4},
    {'model.num_layers': 8, 'run.batch_size': 1},
    {'model.num_layers': 8, 'run.batch_size': 512},
  ],
)
def test_runs_of_a_very_different_size_are_not_used(tmp_path, toy):
  """A toy model with a few tokens per step once gave an estimate of 10 hours for the default experiment."""
  runs = planned(tmp_path, toy=toy, real={'model.num_layers': 8})
  run_directory.prepare(runs[0].directory, runs[0].config)
  made_result.finish(runs[0].directory, tokens_per_second=1000.0, **HERE)
  estimate = time_estimate.estimate_time(runs[1:2], {}, ONE_CORE, tmp_path)
  assert estimate.basis.startswith('rough: ')
  assert estimate.seconds == pytest.approx(
    time_estimate.run_seconds(runs[1].config, 2e9 / flops_per_token(runs[1].config.model, 64))
  )
  mixed = time_estimate.estimate_time(
    [runs[2], runs[1]], {}, ONE_CORE[:1], tmp_path
  )  # only one of them has a comparable run
  assert mixed.basis.startswith('rough: ')


@pytest.mark.parametrize('other', [{'device': 'cpu (Another)'}, {'layout': '1 cpu device(s), 2 core(s)'}])
def test_runs_of_another_machine_are_not_used(tmp_path, other):
  runs = planned(tmp_path, a={'model.num_layers': 2}, b={'model.num_layers': 3})
  run_directory.prepare(runs[0].directory, runs[0].config)
  made_result.finish(runs[0].directory, tokens_per_second=1000.0, **(HERE | other))
  estimate = time_estimate.estimate_time(runs[1:2], {}, ONE_CORE, tmp_path)
  flops = flops_per_token(runs[1].config.model, 64)
  assert estimate.seconds == pytest.approx(time_estimate.run_seconds(runs[1].config, 2e9 / flops))
  assert estimate.basis == 'rough: assumes half the speed of a large matrix product on this machine, 4 GFLOP/s'


def test_there_is_no_estimate_for_a_gpu_without_finished_runs(tmp_path, monkeypatch):
  monkeypatch.setattr(devices, 'detect_devices', lambda: DetectedDevices('gpu', 1, 'NVIDIA H200', ''))
  assert time_estimate.estimate_time(planned(tmp_path, a={}), {}, [WorkerSlot(None, {})], tmp_path) is None


def test_a_dry_run_ends_with_the_estimated_time(tmp_path):
  runs = planned(tmp_path / 'runs', a={}, b={'model.num_layers': 3})
  output = io.StringIO()
  with flagsaver.flagsaver():
    parse_flags('train.py', ['train.py', '--dry_run'])
    launchers.from_flags(2)(runs, worker_pool.unfinished(runs), Console(file=output))
  last = output.getvalue().splitlines()[-1]
  assert last.startswith('about ')
  assert ' for 4 runs, 2 runs at a time, compilation not included (rough: ' in last
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(('seconds', 'text'), [(0.2, '1 s'), (75, '75 s'), (300, '5 min'), (7200, '2.0 h')])
def test_the_format_of_durations(seconds, text):
  assert time_estimate.format_duration(seconds) == text
