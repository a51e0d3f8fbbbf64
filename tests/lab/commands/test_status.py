"""The run status, read from files that are written here without training."""

import os
import re
import socket
import time

import made_result
import pytest
from in_process import run_main
from rich.console import Console

from lab.commands import status
from lab.core import plan
from lab.core.experiment import Experiment
from training.config import Config
from training.run_files import locks, run_directory


@pytest.fixture
def runs(tmp_path, monkeypatch):
  """One run in each state, with two logged steps if it has started."""
  monkeypatch.chdir(tmp_path)
  names = ('completed', 'diverged', 'failed_to_learn', 'running', 'failed', 'stopped', 'waiting')
  variants = {name: {'optimizer.learning_rate': 1e-3 * (k + 1)} for k, name in enumerate(names)}
  experiment = Experiment(name='trial', question='?', variants=variants, seeds=(0,))
  runs = {run.variant: run for run in plan.plan_runs(experiment, Config(), {}, tmp_path)}
  for name, run in runs.items():
    if name != 'waiting':
      run_directory.prepare(run.directory, run.config)
      log = run.directory / 'metrics.jsonl'
      log.write_text('{"step": 1, "train/loss": 5.5}\n{"step": 30, "train/loss": 2.25}\n{"step": 4')
      os.utime(log, (time.time() - 300,) * 2)
    if name in names[:3]:
      made_result.finish(run.directory, name)
  for name in ('running', 'stopped'):
    with locks.locked(runs[name].directory / locks.LOCK):
      pass
  run_directory.record_failure(
    runs['failed'].directory, run_directory.FailureRecord('XlaRuntimeError: RESOURCE_EXHAUSTED [/gpu:0]')
  )
  (runs['failed'].directory / 'log.txt').write_text('first\n' * 9 + 'Traceback\nout of memory\n')
  (runs['waiting'].directory).mkdir(parents=True)
  (runs['waiting'].directory / 'slurm.json').write_text('{"job": "12_6"}')
  with locks.locked(runs['running'].directory / locks.LOCK):
    yield runs


def test_each_state_is_read_from_the_files(runs):
  found = {name: status.status_of(run) for name, run in runs.items()}
  assert {name: one.state for name, one in found.items()} == {name: name for name in runs}
  assert {name: (one.step, one.loss) for name, one in found.items()} == {
    name: (0, None) if name == 'waiting' else (30, 2.25) for name in runs
  }
  assert found['running'].note == f'process {os.getpid()} on {socket.gethostname()}'
  assert found['failed'].note == 'XlaRuntimeError: RESOURCE_EXHAUSTED [/gpu:0]'
  assert found['waiting'].note == 'job 12_6'


@pytest.mark.parametrize('name', ['result.json', 'metrics.jsonl', 'failure.json', 'slurm.json'])
@pytest.mark.parametrize('content', ['', '[]', '{"a": NaN}\n{}\n', '{"job": 3, "status": 4, "step": 1}\n'])
def test_a_damaged_file_hides_no_other_run(runs, name, content):
  """The status of a damaged run is read from its other files."""
  for variant in ('completed', 'stopped', 'waiting', 'failed'):
    (runs[variant].directory / name).write_text(content)
  found = {variant: status.status_of(run) for variant, run in runs.items()}
  assert found['diverged'].state == 'diverged'
  if name == 'result.json':
    assert found['completed'].state == 'stopped'
    assert 'result.json is damaged' in found['completed'].note
  if name == 'failure.json':
    assert found['failed'].state == 'failed'
    assert found['failed'].note.startswith('the cause is unknown: ')
  if name == 'slurm.json':
    assert found['waiting'] == status.Status('waiting', 0, None, None, '')


def test_a_run_that_starts_again_has_not_failed(runs):
  run = runs['failed']
  run_directory.prepare(run.directory, run.config)
  assert status.status_of(run).state == 'stopped'


def content_of(folder):
  return {str(path): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_the_printed_status(runs, tmp_path, capfd):
  before = content_of(tmp_path)
  assert status.print_status(list(runs.values()), Console(width=120)) == 0
  lines = [line.strip() for line in capfd.readouterr().out.splitlines()]
  assert any(re.fullmatch(r'trial/stopped/seed_0 +stopped +30/300 +2.250 +5 min ago', line) for line in lines)
  assert any(re.fullmatch(r'trial/waiting/seed_0 +waiting +0/300 +job 12_6', line) for line in lines)
  failure = lines.index('trial/failed/seed_0: FAILED: XlaRuntimeError: RESOURCE_EXHAUSTED [/gpu:0]')
  assert lines[failure + 7 : failure + 9] == ['Traceback', 'out of memory']
  assert lines[-1] == ('7 runs: 1 completed, 1 diverged, 1 failed to learn, 1 running, 1 failed, 1 stopped, 1 waiting')
  assert content_of(tmp_path) == before


def test_the_flags_are_those_of_the_experiment(tmp_path, monkeypatch, capfd):
  monkeypatch.chdir(tmp_path)
  sweep = ['--sweep=optimizer.learning_rate=1e-3,2e-3', '--name=trial', '--seeds=0,1', '--status']
  assert run_main(*sweep) == 0
  assert run_main('--tune', '--seeds=0', '--status', '--launcher=slurm') == 0  # without Slurm
  output = capfd.readouterr().out
  assert '\n4 runs: 4 waiting\n' in output
  assert '\n44 runs: 44 waiting\n' in output
  assert list(tmp_path.iterdir()) == []
  changed = Config().replace({'run.batch_size': 7})
  run_directory.prepare(tmp_path / 'runs' / 'trial' / 'learning_rate=0.001' / 'seed_0', changed)
  assert run_main(*sweep) == 0  # shown instead of refused, since nothing is written
  output = capfd.readouterr().out
  assert re.search(r'trial/learning_rate=0.001/seed_0 +waiting +0/300', output)
  assert '\n4 runs: 4 waiting\n' in output
  assert 'this command would train other runs: runs/trial/learning_rate=0.001/seed_0 holds another run (' in output
  assert 'run.batch_size is 7 there, 16 here' in output
  assert '--workdir' not in output


def test_runs_with_another_number_of_steps_are_shown_with_it(tmp_path, monkeypatch, capfd):
  monkeypatch.chdir(tmp_path)
  command = ['--connection=post', '--name=trial', '--seeds=0-2']
  for seed in (0, 1):
    config = Config().replace({'model.connection': 'post', 'run.steps': 40, 'data.seed': seed, 'run.init_seed': seed})
    run_directory.prepare(tmp_path / 'runs' / 'custom' / 'trial' / f'seed_{seed}', config)
  assert run_main(*command, '--status') == 0
  output = capfd.readouterr().out
  assert re.search(r'seed_1 +waiting +0/40\b', output)
  assert re.search(r'seed_2 +waiting +0/300\b', output)
  assert 'run.steps is 40 there, 300 here) (and 1 more); the table shows the existing runs' in output


NAMES = [f'connection={placement}+learning_rate=0.00{k}+num_layers=12' for placement in ('pre', 'post') for k in (1, 2)]


@pytest.mark.parametrize('width', [40, 60, 80, 100, 120])
def test_nothing_is_cut_in_a_narrow_terminal(tmp_path, width, capfd):
  variants = {name: {'optimizer.learning_rate': 1e-3 * (k + 1)} for k, name in enumerate(NAMES)}
  experiment = Experiment(name='custom', question='?', variants=variants, seeds=(0, 11))
  runs = plan.plan_runs(experiment, Config(), {}, tmp_path)
  for run in runs[1:]:
    run_directory.prepare(run.directory, run.config)
    (run.directory / 'metrics.jsonl').write_text('{"step": 1, "train/loss": 5.5}\n{"step": 30, "train/loss": 2.25}\n')
  for run in runs[4:]:
    made_result.finish(run.directory, 'failed_to_learn')
  (runs[0].directory).mkdir(parents=True)
  (runs[0].directory / 'slurm.json').write_text('{"job": "1234567_6"}')
  assert status.print_status(runs, Console(width=width)) == 0
  lines = capfd.readouterr().out.splitlines()
  assert max(map(len, lines)) <= width
  assert '…' not in ''.join(lines)
  states = [line for line in lines if re.search(r' (waiting|stopped|failed to learn) +\d+/300', line)]
  assert len(states) == len(runs)
  first = min(line.index('/300') for line in states)
  names = ''.join(line[: first - 20].split('  ')[0].strip() for line in lines)
  for run in runs:
    assert run.label in names
  if width >= 80:
    assert sum('2.250' in line for line in lines) == len(runs) - 1


def test_without_an_experiment_all_existing_runs_are_shown(tmp_path, monkeypatch, capfd):
  monkeypatch.chdir(tmp_path)
  for name in ('trial', 'other'):
    experiment = Experiment(name=name, question='?', variants={'a': {}, 'b': {'model.num_layers': 3}}, seeds=(0, 2, 10))
    for run in plan.plan_runs(experiment, Config(), {}, tmp_path / 'w'):
      run_directory.prepare(run.directory, run.config)
      made_result.finish(run.directory, 'completed')
  point = tmp_path / 'w/block/tuning/relu/lr_0.001/seed_100'
  run_directory.prepare(point, Config())
  (tmp_path / 'w/trial/b/seed_2/config.json').write_text('{')
  (tmp_path / 'w/trial/c/seed_0').mkdir(parents=True)
  (tmp_path / 'w/trial/b/seed_0/metrics.jsonl').write_text('{"step": 1}\nx\n{}\n')
  before = content_of(tmp_path)
  assert run_main('--status', '--workdir=w') == 0
  output = capfd.readouterr().out
  labels = re.findall(r'^ *(\S+/seed_\d+) ', output, re.MULTILINE)
  assert labels == [
    'block/tuning/relu/lr_0.001/seed_100', *(f'other/{variant}/seed_{k}' for variant in 'ab' for k in (0, 2, 10)),
    *(f'trial/a/seed_{k}' for k in (0, 2, 10)), 'trial/b/seed_0', 'trial/b/seed_10',
  ]  # fmt: skip
  assert '\n12 runs: 11 completed, 1 waiting\n' in output
  assert re.search(r'^w/trial/b/seed_2: .*config.json is damaged', output, re.MULTILINE)
  assert re.search(r'^trial/b/seed_0: .*metrics.jsonl, line 2 is damaged', output, re.MULTILINE)
  assert 'w/trial/c/seed_0: not started' in output
  assert content_of(tmp_path) == before
  assert run_main('--status', '--workdir=w', '--experiment=heads', '--seeds=0') == 0
  assert 'waiting' in capfd.readouterr().out


def test_an_empty_workdir_has_no_runs(tmp_path, monkeypatch, capfd):
  monkeypatch.chdir(tmp_path)
  assert run_main('--status') == 0
  assert capfd.readouterr().out == 'no runs in runs yet\n'
