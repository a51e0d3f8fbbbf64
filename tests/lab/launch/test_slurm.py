"""The Slurm launcher: its script, with fake Slurm commands, and with jobs that submitit runs on this machine."""

import os
import re
import shlex
import signal
import time
from pathlib import Path

import made_result
import pytest
import submitit
from in_process import run_main
from rich.console import Console

from lab.cli import signals
from lab.commands import status
from lab.core import plan
from lab.core.experiment import Experiment
from lab.core.run import Run
from lab.launch import slurm, slurm_flags, submitit_executor, worker_pool
from training.config import Config, ConfigError
from training.files import read_json
from training.run_files import run_directory
from training.run_files.metrics_log import read_metrics

SMALL = {
  'data.task': 'copy', 'data.sequence_length': 16, 'model.num_layers': 1, 'model.d_model': 8, 'model.num_heads': 2,
  'inspect.level': 'off', 'run.steps': 100, 'run.batch_size': 4, 'run.log_every': 1, 'run.evaluations': 1,
  'run.evaluation_batches': 1, 'run.checkpoint_every': 50, 'optimizer.warmup_steps': 4,
}  # fmt: skip
REQUEST = slurm_flags.Resources(minutes=60)


def planned(workdir: Path, **variants) -> list[Run]:
  experiment = Experiment(name='trial', question='?', variants=variants, seeds=(0,))
  return plan.plan_runs(experiment, Config(), SMALL, workdir)


@pytest.mark.parametrize(
  ('text', 'minutes'),
  [('90', 90), ('90:30', 91), ('2:00:00', 120), ('0:59:59', 60), ('1-0', 1440), ('1-2:30', 1590), ('1-2:30:01', 1591)],
)
def test_a_time_limit_is_parsed_as_by_sbatch(text, minutes):
  assert slurm_flags.parse_time(text) == minutes


@pytest.mark.parametrize('text', ['', 'soon', '1h', '-5', '1:2:3:4', '1-2-3', '2', '0', '1:30', '-1-0'])
def test_an_invalid_time_limit_is_rejected(text):
  with pytest.raises(ConfigError, match=f'^--slurm_time={text}: '):
    slurm_flags.parse_time(text)


@pytest.fixture
def cwd(tmp_path, monkeypatch):
  """The current directory of the command."""
  (tmp_path / 'cwd').mkdir()
  monkeypatch.chdir(tmp_path / 'cwd')
  return tmp_path / 'cwd'


BLOCK = ['--experiment=block', '--variants=baseline,relu', '--seeds=0,1,2', '--launcher=slurm']


def test_a_dry_run_prints_the_script_and_writes_nothing(cwd, capfd):
  resources = [
    '--slurm_partition=gpu', '--slurm_time=1-2:30', '--slurm_gpus=1', '--slurm_cpus=4', '--slurm_mem=16G',
    '--slurm_account=lab',
  ]  # fmt: skip
  assert run_main(*BLOCK, *resources, '--dry_run') == 0
  output, error = capfd.readouterr()
  assert error == ''
  runs, script = output.split('#!/bin/bash\n')
  assert runs.splitlines() == [
    *(f'runs/block/{variant}/seed_{seed}: starts' for seed in range(3) for variant in ('baseline', 'relu')),
    '6 of 6 runs would be trained',
  ]
  options = dict(re.findall(r'^#SBATCH --([\w-]+)=?(.*)$', script, re.MULTILINE))
  assert options.pop('output').startswith(f'{cwd}/runs/block/slurm/')
  assert options.pop('error').startswith(f'{cwd}/runs/block/slurm/')
  assert options == {
    'array': '0-5%6', 'partition': 'gpu', 'time': '1590', 'gpus-per-node': '1', 'cpus-per-task': '4', 'mem': '16G',
    'account': 'lab', 'requeue': '', 'signal': 'USR2@90', 'job-name': 'block', 'nodes': '1', 'open-mode': 'append',
  }  # fmt: skip
  assert f'export PYTHONPATH={shlex.quote(str(worker_pool.PROJECT))}$' in script
  assert re.search(r'^srun .* --cpus-per-task=4 .* -m submitit', script, re.MULTILINE)
  assert list(cwd.iterdir()) == []


def test_options_without_a_flag_are_left_to_the_cluster(tmp_path):
  script = slurm.batch_script(REQUEST, planned(tmp_path, only={}))
  for option in ('array', 'partition', 'gpus-per-node', 'cpus-per-task', 'mem', 'account', 'wckey'):
    assert f'#SBATCH --{option}' not in script
  assert 'srun --unbuffered' in script


INJECTIONS = [
  'gpu\n#SBATCH --uid=0', 'gpu\rtouch x', 'gpu\u2028x', 'gpu\x00', 'gpu x', 'gpu;x', '$(x)', '`x`', '-gpu', '', "gpu'x",
  'gpu"', 'gpu\\n', 'gpu,', '../gpu', 'gpu\x85x', '\uff11\uff16',
]  # fmt: skip


@pytest.mark.parametrize('text', INJECTIONS)
@pytest.mark.parametrize('flag', ['partition', 'account', 'mem', 'time'])
def test_values_that_could_inject_into_the_script_are_rejected(cwd, capfd, flag, text):
  assert run_main(*BLOCK, '--dry_run', f'--slurm_{flag}={text}') == 2
  output, error = capfd.readouterr()
  assert (output, error.count('\n')) == ('', 1)
  assert error.startswith(f'train.py: --slurm_{flag}=')
  assert list(cwd.iterdir()) == []


@pytest.mark.parametrize(
  ('flag', 'text'),
  [('partition', 'gpu,gpu-long_2.b'), ('account', 'lab+x'), ('mem', '16g'), ('mem', '0'), ('mem', '128GB')],
)
def test_valid_values_are_passed_to_sbatch(cwd, capfd, flag, text):
  assert run_main(*BLOCK, '--dry_run', f'--slurm_{flag}={text}') == 0
  assert f'#SBATCH --{flag}={text}\n' in capfd.readouterr().out


@pytest.mark.parametrize('name', ['a b', "it's", 'say "x"', '$(touch hacked)', ';#x', '*', 'é', '[b]red[/b]'])
def test_a_workdir_is_quoted_as_one_word_in_the_script(cwd, capfd, name):
  assert run_main(*BLOCK, '--dry_run', f'--workdir={cwd / name}') == 0
  script = capfd.readouterr().out.partition('#!/bin/bash\n')[2]
  (output,) = re.findall('^#SBATCH --output=(.*)$', script, re.MULTILINE)
  assert len(shlex.split(output)) == 1
  assert shlex.split(output)[0].startswith(f'{cwd / name}/block/slurm/')
  (command,) = re.findall('^srun .*$', script, re.MULTILINE)
  assert shlex.split(command)[-1].startswith(f'{cwd / name}/block/slurm/')


@pytest.mark.parametrize('name', ['100%', '%u', 'a\\b', 'a\nb', 'a\udcff', 'tab\tx'])
def test_a_workdir_with_a_special_meaning_in_slurm_is_rejected(cwd, capfd, name):
  assert run_main(*BLOCK, '--dry_run', f'--workdir={cwd / name}') == 2
  output, error = capfd.readouterr()
  assert (output, error.count('\n')) == ('', 1)
  assert error.startswith('train.py: --workdir=')
  assert list(cwd.iterdir()) == []


SLURM = {
  'sbatch': 'if [ -e {folder}/refuse ]; then echo "sbatch: error: invalid partition: gpuu" >&2; exit 1; fi\n'
  'cp "$1" {folder}/script; echo "Submitted batch job 12"',
  'squeue': 'cat {folder}/queue',
  'srun': 'exit 1',
}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
  """Fake Slurm commands: the file `queue` contains the output of squeue, `script` the last submitted script."""
  folder = tmp_path / 'slurm'
  folder.mkdir()
  (folder / 'queue').touch()
  for name, body in SLURM.items():
    (folder / name).write_text('#!/bin/sh\n' + body.format(folder=folder))
    (folder / name).chmod(0o755)
  monkeypatch.setenv('PATH', str(folder), prepend=os.pathsep)
  return folder


def test_only_unfinished_runs_that_are_not_queued_are_submitted(cwd, cluster, capfd):
  assert run_main(*BLOCK) == 0
  assert 'submitted 6 runs as job 12\n' in capfd.readouterr().out
  assert '--array=0-5%6' in (cluster / 'script').read_text()
  runs = [cwd / 'runs' / 'block' / variant / f'seed_{seed}' for seed in range(3) for variant in ('baseline', 'relu')]
  assert [read_json(run / 'slurm.json') for run in runs] == [{'job': f'12_{k}'} for k in range(6)]
  assert len(list(cwd.glob('runs/block/slurm/*/12_*_submitted.pkl'))) == 6
  (cluster / 'script').unlink()
  (cluster / 'queue').write_text('12_0\n12_1\n12_2\n12_3\n12_4\n12_5\n7\n')
  assert run_main(*BLOCK) == 0
  assert 'all unfinished runs are in the queue\n' in capfd.readouterr().out
  assert not (cluster / 'script').exists()
  (cluster / 'queue').write_text('12_0\n12_3\n')
  run_directory.record_failure(runs[1], run_directory.FailureRecord('out of memory'))
  assert run_main(*BLOCK) == 0
  assert 'submitted 4 runs as job 12\n' in capfd.readouterr().out
  assert '--array=0-3%4' in (cluster / 'script').read_text()
  assert read_json(runs[1] / 'slurm.json') == {'job': '12_0'}
  assert not (runs[1] / run_directory.FAILURE).exists()


def test_a_job_that_slurm_rejects_gives_one_line_and_leaves_no_files(cwd, cluster, capfd):
  (cluster / 'refuse').touch()
  assert run_main(*BLOCK) == 2
  output, error = capfd.readouterr()
  assert output == ''
  assert error == 'train.py: Slurm rejected the job: sbatch: error: invalid partition: gpuu\n'
  assert list(cwd.iterdir()) == []


@pytest.fixture
def jobs(monkeypatch):
  """Submits runs to processes on this machine; returns the list of their jobs."""
  submitted = []

  class RecordingExecutor(submitit.LocalExecutor):
    def map_array(self, task, runs):
      self.update_parameters(timeout_min=5)
      submitted.extend(super().map_array(task, runs))
      return submitted

  monkeypatch.setenv('PYTHONPATH', str(worker_pool.PROJECT))
  monkeypatch.setattr(slurm, '_queued_jobs', set)
  monkeypatch.setattr(submitit_executor, 'create_executor', lambda resources, folder, name: RecordingExecutor(folder))
  return submitted


@pytest.mark.slow
def test_a_requeued_run_resumes(tmp_path, jobs):
  """tests/test_stopped.py checks that its numbers are those of an uninterrupted run."""
  (run,) = planned(tmp_path, only={})
  assert slurm.submit(REQUEST, [run], Console(quiet=True)) == 0
  (job,) = jobs
  while status.status_of(run).step < 1:
    assert not job.done(), job.stderr()
    time.sleep(0.005)
  for name in ('lock', 'claim'):  # the worker and the task: Slurm signals every process
    os.kill(int((run.directory / name).read_text().split()[1]), signal.SIGUSR2)
  assert job.result() is None
  assert job.stdout().count('Requeued job') == 1
  assert 0 < read_json(run.directory / 'result.json')['resumed_at'] < 100
  assert [row['step'] for row in read_metrics(run.directory / 'metrics.jsonl')] == list(range(1, 101))


class Requeued(Exception):  # noqa: N818 - stands for submitit's handler
  pass


class Waits(Exception):  # noqa: N818 - stands for waiting until Slurm ends the task
  pass


@pytest.fixture
def train(tmp_path, monkeypatch):
  """Runs a task whose run receives signals, or fails."""
  (run,) = planned(tmp_path, only={})

  def train(*numbers: int, failed: bool = False) -> None:
    def execute(runs, slots, display, *, grace, check):
      for number in numbers:
        os.kill(os.getpid(), number)
      return worker_pool.Outcome(list(runs) if failed else [], stopped=bool(numbers))

    monkeypatch.setattr(worker_pool, 'execute', execute)
    slurm.Task()(run)

  def end(kind):
    raise kind

  monkeypatch.setattr(signal, 'pause', lambda: end(Waits))
  with signals.restored_handlers():
    signal.signal(signal.SIGTERM, lambda *_: None)
    earlier = signal.signal(signal.SIGUSR2, lambda *_: end(Requeued))
    yield train
    signal.signal(signal.SIGUSR2, earlier)


def test_a_task_fails_with_its_run(train):
  train()
  with pytest.raises(RuntimeError, match=r'^trial/only/seed_0 failed$'):
    train(failed=True)


def test_only_sigusr2_requeues_a_task(train):
  """A SIGTERM may be a cancellation: then the task waits until Slurm ends it."""
  with pytest.raises(Waits):
    train(signal.SIGTERM)
  with pytest.raises(Requeued):
    train(signal.SIGTERM, signal.SIGUSR2)


def test_a_finished_run_is_not_trained_again(train, tmp_path):
  directory = tmp_path / 'trial' / 'only' / 'seed_0'
  run_directory.prepare(directory, Config().replace(SMALL))
  made_result.finish(directory)
  train(signal.SIGUSR2)


def test_squeue_has_a_timeout(tmp_path, monkeypatch):
  command = tmp_path / 'squeue'
  command.write_text('#!/bin/sh\nexec sleep 60\n')
  command.chmod(0o755)
  monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
  monkeypatch.setattr(slurm, 'SQUEUE_TIMEOUT', 0.2)
  with pytest.raises(ConfigError, match=r'Slurm does not respond: squeue took more than 0\.2 s'):
    slurm._queued_jobs()
