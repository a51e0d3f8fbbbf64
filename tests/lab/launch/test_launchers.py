import contextlib
import io

import made_result
import made_run
from absl.testing import flagsaver
from rich.console import Console

from lab.cli.command_line import parse_flags
from lab.core import plan
from lab.core.experiment import Experiment
from lab.launch import device_report, devices, launchers, placement, worker_pool
from training.config import Config
from training.data.loading import load_data
from training.run_files import run_directory

TINY = {
  'data.task': 'copy', 'data.sequence_length': 8, 'model.num_layers': 1, 'model.d_model': 8, 'model.num_heads': 2,
  'run.steps': 40, 'run.batch_size': 4,
}  # fmt: skip


def test_a_dry_run_prints_the_step_from_which_each_run_would_resume(tmp_path):
  variants = {name: {'optimizer.learning_rate': 1e-3 * (k + 1)} for k, name in enumerate(('done', 'started', 'new'))}
  runs = plan.plan_runs(Experiment(name='trial', question='?', variants=variants, seeds=(0,)), Config(), TINY, tmp_path)
  done, started, new = runs
  run_directory.prepare(done.directory, done.config)
  made_result.finish(done.directory)
  made_run.make_run(started.directory, started.config, load_data(started.config))
  before = sorted(tmp_path.rglob('*'))
  output = io.StringIO()
  with flagsaver.flagsaver():
    parse_flags('train.py', ['train.py', '--dry_run'])
    launched = launchers.from_flags(0)(runs, worker_pool.unfinished(runs), Console(file=output))
  assert launched == ([], 0)
  assert output.getvalue().split('\n')[:4] == [
    f'{done.directory}: is finished',
    f'{started.directory}: resumes from step 36',
    f'{new.directory}: starts',
    '2 of 3 runs would be trained',
  ]
  assert sorted(tmp_path.rglob('*')) == before


def test_concurrent_launches_use_different_cores_and_print_their_devices(tmp_path, monkeypatch):
  """Two commands are launched while a third one runs."""
  monkeypatch.setattr('lab.launch.device_locks.FOLDER', tmp_path / 'devices')
  for module in (devices, placement, device_report):
    monkeypatch.setattr(module, 'cores', lambda: [4, 6])
  monkeypatch.setattr(device_report, 'processor', lambda: 'A CPU')
  monkeypatch.setattr(device_report, 'find_accelerator', lambda: ('', ''))
  for name in ('JAX_NUM_CPU_DEVICES', 'XLA_FLAGS'):
    monkeypatch.delenv(name, raising=False)
  variants = {name: {'optimizer.learning_rate': 1e-3 * (k + 1)} for k, name in enumerate('abc')}
  runs = plan.plan_runs(Experiment(name='trial', question='?', variants=variants, seeds=(0,)), Config(), TINY, tmp_path)
  printed, cores = [], []

  def execute(todo, slots, display, group, check):
    cores.append([slot.core for slot in slots])
    if len(cores) == 1:
      printed.append(launch_and_print(1, runs[2:]))
      printed.append(launch_and_print(0, runs[1:]))
    return worker_pool.Outcome([], False)

  def launch_and_print(workers, todo):
    output = io.StringIO()
    launchers.local_launcher(workers)(runs, todo, Console(file=output))
    return output.getvalue()

  monkeypatch.setattr(worker_pool, 'execute', execute)
  monkeypatch.setattr(worker_pool, 'claim', lambda runs: contextlib.nullcontext())
  assert launch_and_print(1, runs[:1]) == 'training on 1 CPU core (A CPU)\n'
  assert cores == [[4], [6], [6, 4]]
  assert printed == [
    'training on 1 CPU core (A CPU)\n',
    'training on 2 CPU cores (A CPU), 2 runs at a time, shared with another command\n',
  ]
