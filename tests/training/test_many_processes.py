"""Processes that train one run together, over loopback: two with four CPU devices each, or four with two."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from kill_many_times import PROJECT, wait_for
from quick_runs import final_state, rows_of, train

from training.config import Config
from training.run_files.checkpoint import steps_in

COMMAND = [
  sys.executable, str(PROJECT / 'train.py'), '--name=mine', '--config.mesh.data=2', '--config.mesh.fsdp=4',
  '--config.data.task=copy', '--config.data.sequence_length=16', '--config.model.num_layers=1',
  '--config.model.d_model=32', '--config.model.unroll=1', '--config.run.steps=60', '--config.run.log_every=10',
  '--config.run.checkpoint_every=10', '--config.run.evaluations=1', '--config.run.evaluation_batches=1',
]  # fmt: skip
QUICK = {'XLA_FLAGS': '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'}


@pytest.fixture
def start():
  """Starts the commands of all processes; kills those still running at the end."""
  started: list[subprocess.Popen] = []

  def start(folder: Path, count: int = 2) -> list[subprocess.Popen]:
    with socket.create_server(('localhost', 0)) as free:
      where = [f'--coordinator=localhost:{free.getsockname()[1]}', f'--num_processes={count}']
    for index in range(count):
      started.append(
        subprocess.Popen(
          [*COMMAND, *where, f'--process_id={index}'], cwd=folder, env=os.environ | QUICK, stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT, text=True,
        )
      )  # fmt: skip
    return started[-count:]

  yield start
  for process in started:
    with process:
      process.kill()


def worker_of(process: subprocess.Popen) -> int:
  return int(Path(f'/proc/{process.pid}/task/{process.pid}/children').read_text().split()[0])


def end(processes: list[subprocess.Popen], seconds: float | None = None) -> tuple[list[int], list[str]]:
  outputs = [process.communicate(timeout=seconds)[0] for process in processes]
  return [process.returncode for process in processes], outputs


def curves(run: Path) -> dict[str, list[float]]:
  """The losses and the gradient split."""
  rows = rows_of(run)
  names = [name for name in rows[-1] if name == 'step' or 'loss' in name or name.startswith('stream_gradient/')]
  return {name: [row[name] for row in rows if name in row] for name in names}


def assert_close(one, other) -> None:
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    assert np.linalg.norm(np.float64(a) - np.float64(b)) <= 1e-5 * np.linalg.norm(np.float64(b))


def assert_as_on_one_device(run: Path, alone: Path) -> None:
  config = Config.from_flat(json.loads((run / 'config.json').read_text())).replace({'mesh.data': 1, 'mesh.fsdp': 1})
  train(alone, config)
  assert_close(final_state(run, config), final_state(alone, config))
  assert_close(curves(run), curves(alone))


@pytest.mark.slow
def test_two_killed_and_stopped_processes_give_the_numbers_of_one_device(tmp_path, start):
  run = tmp_path / 'runs' / 'custom' / 'mine' / 'seed_0'

  two = start(tmp_path)
  wait_for(lambda: (run / 'checkpoints' / '10').exists(), two[0])
  os.kill(worker_of(two[1]), signal.SIGKILL)
  codes, (output, _) = end(two, seconds=60)
  assert codes == [1, 1]
  started, *_, failed = output.splitlines()  # progress lines in between
  assert started.startswith('training on ')
  assert started.endswith(', as 4 devices, process 0 of 2')
  assert failed == (
    'custom/mine/seed_0: FAILED: lost process 1 of 2; run the same commands again to resume from the last checkpoint'
  )

  two = start(tmp_path)
  wait_for(lambda: (run / 'checkpoints' / '20').exists(), two[0])
  two[1].send_signal(signal.SIGTERM)
  codes, outputs = end(two)
  assert codes == [75, 75], outputs
  stopped_at = steps_in(run / 'checkpoints')[0]
  assert 20 <= stopped_at < 60

  codes, outputs = end(start(tmp_path))
  assert codes == [0, 0], outputs
  assert json.loads((run / 'result.json').read_text())['resumed_at'] == stopped_at
  assert_as_on_one_device(run, tmp_path / 'alone')


@pytest.mark.slow
def test_four_processes_give_the_numbers_of_one_device(tmp_path, start):
  codes, outputs = end(start(tmp_path, count=4))
  assert codes == [0] * 4, outputs
  assert_as_on_one_device(tmp_path / 'runs' / 'custom' / 'mine' / 'seed_0', tmp_path / 'alone')
