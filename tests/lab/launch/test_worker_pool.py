import asyncio
import dataclasses
import gc
import io
import os
import signal
import subprocess
import sys
import time

import jax
import made_result
import numpy as np
import pytest
from rich.console import Console
from stub_worker import STUB

from lab.analysis import results
from lab.cli import signals
from lab.core import plan
from lab.core.experiment import Experiment
from lab.launch import worker_pool
from lab.launch.devices import DetectedDevices, WorkerSlot, worker_slots
from lab.launch.progress import ProgressDisplay
from training.config import Config, ConfigError
from training.digests import read_manifest
from training.files import read_json
from training.run_files import locks, run_directory
from training.run_files.checkpoint import load_checkpoint, steps_in
from training.state import init_state


@pytest.fixture
def stub(tmp_path, monkeypatch):
  """Replaces the worker by the stub."""
  package = tmp_path / 'project' / 'lab' / 'launch'
  package.mkdir(parents=True)
  (package / 'worker.py').write_text(STUB)
  monkeypatch.setattr(worker_pool, 'PROJECT', tmp_path / 'project')


def runs_of(tmp_path, *names, seeds=(0,)):
  variants = {name: {'optimizer.learning_rate': 1e-3 + k * 1e-4} for k, name in enumerate(names)}
  experiment = Experiment(name='trial', question='?', variants=variants, seeds=seeds)
  return plan.plan_runs(experiment, Config(), {}, tmp_path / 'work dir')


def execute(runs, slots, terminal=False):
  output = io.StringIO()
  console = Console(file=output, width=100, force_terminal=terminal)
  with ProgressDisplay(console, len(runs), 0) as display:
    failed, stopped = worker_pool.execute(runs, slots, display)
  assert not stopped
  return [run.variant for run in failed], output.getvalue()


def stop(runs, slots, grace=worker_pool.GRACE_PERIOD):
  """Runs `execute`, asserts that it was stopped, and returns what it printed."""
  output = io.StringIO()
  earlier = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
  try:
    with ProgressDisplay(Console(file=output, width=100), len(runs), 0) as display:
      assert worker_pool.execute(runs, slots, display, grace=grace) == ([], True)
  finally:
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == earlier
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
  return output.getvalue()


@pytest.mark.parametrize('workers', [1, 2, 5])
def test_a_worker_that_dies_fails_only_its_own_run(tmp_path, stub, workers):
  runs = runs_of(tmp_path, 'good', 'killed', 'fine', 'exits', 'well', 'fails', 'done')
  failed, output = execute(runs, [WorkerSlot(None, {})] * workers)
  assert sorted(failed) == ['exits', 'fails', 'killed']
  assert [run.variant for run in worker_pool.unfinished(runs)] == ['killed', 'exits', 'fails']
  killed = 'its process was killed by SIGKILL (sent by a user, or by the system because memory ran out)'
  assert f'trial/killed/seed_0: FAILED: {killed}\n  one\n  two\n' in output
  assert 'trial/exits/seed_0: FAILED: its process exited with code 3' in output
  assert 'trial/fails/seed_0: FAILED: MemoryError: 3 GB\n  one\n  two\n' in output
  assert 'trial/done/seed_0: completed, training loss 1.500' in output
  assert 'log.txt' in output
  failures = {run.variant: read_json(run.directory / 'failure.json') for run in runs}
  assert {name: failure['error'] for name, failure in failures.items() if failure} == {
    'killed': killed, 'exits': 'its process exited with code 3',
    'fails': 'MemoryError: 3 GB',
  }  # fmt: skip


def test_a_failure_shows_only_the_log_of_its_own_attempt(tmp_path, stub):
  """Every attempt appends to the log of the run."""
  (run,) = runs = runs_of(tmp_path, 'silent')
  run.directory.mkdir(parents=True)
  (run.directory / 'log.txt').write_text('RuntimeError: from an earlier attempt\n')
  output = execute(runs, [WorkerSlot(None, {})])[1]
  assert 'FAILED: its process was killed by SIGKILL' in output
  assert 'from an earlier attempt' not in output
  assert 'it wrote nothing to its log' in output
  (run.directory / 'log.txt').write_text('RuntimeError: from an earlier attempt\n')
  assert run_directory.read_failure(run.directory).log_start == 38


def test_if_a_worker_cannot_be_started_the_others_train_all_runs(tmp_path, stub, monkeypatch):
  start, answers = asyncio.create_subprocess_exec, iter([BlockingIOError(11, 'Resource temporarily unavailable')])

  async def scarce(*arguments, **settings):
    for error in answers:
      raise error
    return await start(*arguments, **settings)

  monkeypatch.setattr(asyncio, 'create_subprocess_exec', scarce)
  runs = runs_of(tmp_path, 'a', 'b', 'c')
  assert execute(runs, [WorkerSlot(None, {})] * 2)[0] == []
  assert worker_pool.unfinished(runs) == []


@pytest.mark.parametrize(
  'error', [BlockingIOError(11, 'Resource temporarily unavailable'), RuntimeError("can't start new thread")]
)
def test_if_no_worker_can_be_started_the_error_names_the_limit(tmp_path, stub, monkeypatch, error):
  async def refuse(*arguments, **settings):
    raise error

  monkeypatch.setattr(asyncio, 'create_subprocess_exec', refuse)
  with pytest.raises(ConfigError, match=r'no worker could be started \(.*\): .* raise the limit \(ulimit -u'):
    execute(runs_of(tmp_path, 'a', 'b'), [WorkerSlot(None, {})] * 2)


def test_a_worker_that_reports_nothing_for_long_causes_a_warning(tmp_path, stub, monkeypatch):
  monkeypatch.setattr(worker_pool, 'SILENCE', 0.1)
  output = execute(runs_of(tmp_path, 'slow'), [WorkerSlot(None, {})])[1]
  assert (
    'trial/slow/seed_0: no report from its process for 0 minutes: its steps may be slow, or it hangs; see' in output
  )
  assert 'trial/slow/seed_0: completed' in output


def test_a_worker_that_does_not_exit_is_killed(tmp_path, stub, monkeypatch):
  monkeypatch.setattr(worker_pool, 'EXIT_WITHIN', 0.1)
  started = time.monotonic()
  assert execute(runs_of(tmp_path, 'lingers'), [WorkerSlot(None, {})])[0] == []
  assert time.monotonic() - started < 30
  gc.collect()  # warns about a process that was not waited for


def test_moving_the_workdir_stops_the_pool_and_recreates_nothing(tmp_path, stub):
  runs = runs_of(tmp_path, 'moves', 'good')
  output = io.StringIO()
  with (
    pytest.raises(locks.Moved, match='trial was moved or deleted while in use: put it back'),
    worker_pool.claim(runs) as check,
    ProgressDisplay(Console(file=output, width=100), len(runs), 0) as display,
  ):
    worker_pool.execute(runs, [WorkerSlot(None, {})], display, check=check)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['moved', 'project']
  assert not (tmp_path / 'moved' / 'trial' / 'good' / 'seed_0' / 'result.json').exists()


@pytest.mark.parametrize('number', ['SIGTERM', 'SIGINT'])
@pytest.mark.parametrize('workers', [1, 2])
def test_a_signal_stops_the_active_runs_and_starts_no_other(tmp_path, stub, number, workers):
  runs = runs_of(tmp_path, number, 'patient', 'done')
  output = stop(runs, [WorkerSlot(None, {})] * workers)
  assert 'stopping: each run finishes its step and saves' in output
  assert f'trial/{number}/seed_0: stopped after step 1\n' in output
  assert 'FAILED' not in output
  assert not runs[2].directory.exists()


def test_a_signal_to_a_single_worker_stops_the_pool(tmp_path, stub):
  runs = runs_of(tmp_path, 'stopped', 'good')
  assert 'trial/stopped/seed_0: stopped' in stop(runs, [WorkerSlot(None, {})])
  assert not runs[1].directory.exists()


def test_a_stopped_extension_keeps_the_results_of_runs_it_has_not_started(tmp_path, stub):
  shorter, runs = [], runs_of(tmp_path, 'stopped', 'good')
  for run in runs:
    shorter.append(dataclasses.replace(run, config=run.config.replace({'run.steps': 40})))
    run_directory.prepare(run.directory, shorter[-1].config)
    made_result.finish(run.directory, steps=40)
  with worker_pool.claim(runs):
    stop(runs, [WorkerSlot(None, {})])
  assert not run_directory.is_finished(runs[0].directory, shorter[0].config)
  assert run_directory.is_finished(runs[1].directory, shorter[1].config)
  assert read_json(runs[1].directory / 'config.json')['run.steps'] == 40
  assert read_json(runs[0].directory / 'config.json')['run.steps'] == 300


def test_a_worker_that_ignores_sigterm_is_killed(tmp_path, stub):
  started = time.monotonic()
  output = stop(runs_of(tmp_path, 'deaf'), [WorkerSlot(None, {})], grace=0.1)
  assert time.monotonic() - started < worker_pool.GRACE_PERIOD
  assert 'trial/deaf/seed_0: stopped after step 1, not saved: it resumes from its last checkpoint\n' in output


def test_a_second_sigint_quits_at_once(tmp_path, stub):
  with pytest.raises(SystemExit) as ended:
    stop(runs_of(tmp_path, 'impatient', 'good'), [WorkerSlot(None, {})])
  assert ended.value.code == 130


def test_a_worker_never_receives_the_sigint_of_the_terminal(tmp_path):
  program = 'import os, signal; os.kill(os.getpid(), signal.SIGINT); print("here")'
  with signals.sigint_blocked_for_children():
    ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
  assert (ended.stdout, ended.returncode) == ('here\n', 0)
  assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_worker_trains_many_runs_in_the_environment_of_its_slot(tmp_path, stub):
  runs = runs_of(tmp_path, 'a', 'b', 'c', 'd', seeds=(0, 1))
  execute(runs, [WorkerSlot(None, {'CORE': 'left'}), WorkerSlot(None, {'CORE': 'right'})])
  results = [read_json(run.directory / 'environment.json') for run in runs]
  assert len({result['pid'] for result in results}) <= 2
  assert {result['core'] for result in results} <= {'left', 'right'}


def test_a_terminal_shows_a_live_table(tmp_path, stub):
  failed, output = execute(runs_of(tmp_path, 'good', 'fails'), [WorkerSlot(None, {})], terminal=True)
  assert failed == ['fails']
  assert 'runs done' in output


def test_finished_runs_are_skipped(tmp_path, stub):
  runs = runs_of(tmp_path, 'a', 'b')
  execute(runs[:1], [WorkerSlot(None, {})])
  assert worker_pool.unfinished(runs) == [runs[1]]


@pytest.mark.parametrize(('platform', 'device'), [('gpu', 'gpu'), ('tpu', 'chip')])
def test_four_workers_use_four_different_devices(tmp_path, stub, monkeypatch, platform, device):
  """Each of four concurrent runs stores the device in the environment of its worker."""
  for name in ('CUDA_VISIBLE_DEVICES', 'TPU_VISIBLE_CHIPS'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr('lab.launch.devices.detect_devices', lambda: DetectedDevices(platform, 4, '', ''))
  runs = runs_of(tmp_path, *(f'device_{k}' for k in range(4)))
  assert execute(runs, worker_slots(4, whole_machine=False))[0] == []
  results = [read_json(run.directory / 'environment.json') for run in runs]
  assert sorted(result[device] for result in results) == [*'0123']
  assert len({result['pid'] for result in results}) == 4


@pytest.mark.slow
def test_the_numbers_do_not_depend_on_the_workers(tmp_path):
  """Nor on the earlier runs of a worker, even if one diverges. The results of different seeds differ."""
  tiny = {
    'model.num_layers': 2, 'model.d_model': 16, 'model.unroll': 1, 'data.sequence_length': 16, 'run.steps': 6,
    'run.batch_size': 2, 'run.evaluations': 2, 'run.evaluation_batches': 2, 'optimizer.warmup_steps': 2,
    'data.task': 'associative_recall',
  }  # fmt: skip
  variants = {'a': {}, 'bad': {'optimizer.learning_rate': 1e12}, 'c': {'model.norm': 'layer'}}
  experiment = Experiment(name='trial', question='?', variants=variants, seeds=(0, 1))
  outcomes = []
  for name, workers in (('one', 1), ('two', 2), ('again', 2)):
    runs = plan.plan_runs(experiment, Config(), tiny, tmp_path / name)
    assert execute(runs, worker_slots(workers, whole_machine=False))[0] == []
    logs = [(run.directory / 'metrics.jsonl').read_bytes() for run in runs]
    arrays = [read_manifest(newest(run.directory))['arrays'] for run in runs]
    differing = ['seconds', 'train_seconds', 'tokens_per_second', 'workdir', 'directory']
    table = results.load(tmp_path / name).drop(columns=differing)
    outcomes.append((logs, arrays, table.to_csv()))
  assert outcomes[0] == outcomes[1] == outcomes[2]
  assert list(table['status']) == ['failed_to_learn'] * 2 + ['diverged'] * 2 + ['failed_to_learn'] * 2
  assert len(set(table['val_loss'].dropna())) == 4
  for run in runs:
    state = load_checkpoint(
      newest(run.directory), jax.eval_shape(lambda seed, config=run.config: init_state(config, seed), np.uint32(0))
    )[0]
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state))


def newest(directory):
  folder = directory / 'checkpoints'
  return folder / str(steps_in(folder)[0])


def test_a_folder_in_the_current_directory_does_not_shadow_our_modules(tmp_path, monkeypatch):
  (tmp_path / 'training').mkdir()
  (tmp_path / 'training' / '__init__.py').write_text('raise RuntimeError')
  monkeypatch.chdir(tmp_path)
  command = [sys.executable, '-P', '-c', 'import training.files']
  subprocess.run(command, env=os.environ | {'PYTHONPATH': str(worker_pool.PROJECT)}, check=True)
