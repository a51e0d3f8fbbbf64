"""Two commands that use the same work directory at the same time."""

import json
import socket
import subprocess

import made_result
import pandas as pd
import pytest
from kill_many_times import COMMAND, runs_of, start, wait_for
from rich.console import Console

from lab.analysis import results
from lab.commands import run_experiment
from lab.core import plan
from lab.core.experiment import Experiment
from lab.launch import launchers
from training.config import Config, ConfigError
from training.data.loading import load_data
from training.run_files import locks, run_directory

SMALL = [
  '--config.data.task=copy', '--config.data.sequence_length=16', '--config.model.num_layers=2',
  '--config.model.d_model=16', '--config.model.num_heads=2', '--config.model.unroll=1', '--config.run.steps=20',
  '--config.run.batch_size=4', '--config.run.evaluations=2', '--config.optimizer.warmup_steps=4',
]  # fmt: skip


@pytest.mark.slow
def test_a_second_command_on_the_same_runs_is_refused(tmp_path):
  first = start(tmp_path, tmp_path / 'cache')
  wait_for(lambda: (runs_of(tmp_path)[0] / 'claim').exists(), first)
  second = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True)
  assert second.returncode == 2
  assert second.stderr.count('\n') == 1
  assert f'seed_0 is being trained by process {first.pid} on {socket.gethostname()}: wait' in second.stderr
  assert second.stdout == ''
  assert first.wait() == 0
  assert all((run / 'result.json').exists() for run in runs_of(tmp_path))


@pytest.mark.slow
def test_two_commands_on_different_variants_share_a_work_directory(tmp_path):
  """They finish at about the same time; the report of the later one has the runs of both."""
  commands = [
    [*COMMAND[:2], '--experiment=norm_placement', f'--variants={variant}', '--seeds=0,1', '--workers=1', *SMALL]
    for variant in ('pre_rms', 'post_rms')
  ]
  running = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for command in commands]
  assert [process.wait() for process in running] == [0, 0]
  directory = tmp_path / 'runs' / 'norm_placement'
  frame = pd.read_csv(directory / 'results.csv')
  runs = [('post_rms', 0), ('post_rms', 1), ('pre_rms', 0), ('pre_rms', 1)]
  assert list(zip(frame['variant'], frame['seed'], strict=True)) == runs
  assert len(results.load(directory)) == 4
  assert json.loads((directory / 'summary.json').read_text())['variants'].keys() >= {'pre_rms', 'post_rms'}


def test_the_report_is_written_by_one_command_at_a_time(tmp_path, monkeypatch):
  """Otherwise a command that read the results earlier could overwrite the report of a later one."""
  experiment = Experiment(question='?', variants={'a': {}}, name='trial', seeds=(0,))
  scale = Config().replace({'data.task': 'copy', 'run.steps': 40})
  (run,) = plan.plan_runs(experiment, scale, {}, tmp_path)
  run_directory.prepare(run.directory, run.config)
  made_result.finish(run.directory, data_checksum=load_data(run.config).checksum)

  def write(experiment, directory, *others):
    with pytest.raises(ConfigError, match='is being trained by'), locks.locked(directory / 'lock'):
      pass
    raise Stop

  class Stop(BaseException):
    pass

  monkeypatch.setattr('lab.report.report.write', write)
  with pytest.raises(Stop):
    run_experiment.run_experiment(experiment, [run], launchers.local_launcher(), Console(), 'python train.py')
  with locks.locked(tmp_path / 'trial' / 'lock'):
    pass
