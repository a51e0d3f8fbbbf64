"""An experiment file outside of the project that registers a part of the model, from the command line."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from absl.testing import flagsaver
from documented_commands import PROJECT, files_of
from refusal import assert_refused

import train
from configs.flags import load_config
from lab.cli.command_line import parse_flags
from lab.commands.request import resolve
from lab.core import plan
from training.config import ConfigError
from training.run_files import run_directory
from training.run_files.result import read_result

PAGE = PROJECT / 'docs' / 'your_own_idea.md'
GATE = """
import jax, jax.numpy as jnp
from flax import nnx
from lab.core.experiment import Experiment, Grid
from model import Connection, connection

@connection('gate')
class Gate(Connection):
  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    self.gate = nnx.Param(jnp.zeros(config.d_model))
  def read(self, state, site):
    return state
  def write(self, state, y_BTD, site):
    return jax.nn.sigmoid(self.gate[...]) * state + y_BTD

EXPERIMENT = Experiment(question='Why?', variants={'pre': {}, 'gate': {'model.connection': 'gate'}}, seeds=(0,))
"""
TINY = [
  '--config.model.num_layers=1', '--config.model.d_model=8', '--config.model.num_heads=2',
  '--config.data.sequence_length=8', '--config.run.batch_size=4', '--config.run.evaluation_batches=1',
  '--config.optimizer.warmup_steps=1', '--config.run.final_evaluation_tokens=64', '--config.run.evaluations=1',
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch, own_parts):
  """The current folder, with the file `my ideas/gated.py`."""
  (tmp_path / 'my ideas').mkdir()
  (tmp_path / 'my ideas' / 'gated.py').write_text(GATE)
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['my ideas/gate.py'], "no such file: did you mean 'my ideas/gated.py'?"),
    (['my ideas'], 'is a folder'),
    (['my ideas/'], 'is a folder'),
    (['my ideas/gated.txt'], 'the name of a Python file ends in .py'),
    (['my ideas/block.py'], "'block' is the name of a built-in experiment: rename the file"),
    (['my ideas/two words.py'], "two words.py: the name 'two words' is not a valid folder name"),
    (['my ideas/nothing.py'], 'nothing.py: defines no EXPERIMENT'),
    (['my ideas/number.py'], 'number.py, line 2: EXPERIMENT must be an Experiment'),
    (['my ideas/cut.py'], 'cut.py, line 1: not valid Python'),
    (['my ideas/old.py'], 'old.py, line 1: experiments.grid is now lab.reproduce.learning_rate_grid'),
    (['my ideas/wrong.py'], 'wrong.py: class Gate: read must return float32[2, 3, 64]'),
    (['my ideas/option.py'], "option/gate: model.connection=gate: unknown option 'speed': it has none"),
    (['my ideas/gated.py', '--sweep=model.connection=pre,gated'], "model.connection='gated': must be one of"),
    (['my ideas/gated.py', '--sweep=model.connection=pre,gate', '--tune'], '--tune needs an experiment file'),
  ],
)
def test_an_invalid_file_is_refused(folder, capfd, arguments, message):
  ideas = folder / 'my ideas'
  for name in ('gated.txt', 'block.py', 'two words.py'):
    (ideas / name).write_text(GATE)
  (ideas / 'nothing.py').write_text('x = 1')
  (ideas / 'number.py').write_text('\nEXPERIMENT = 5')
  (ideas / 'cut.py').write_text('EXPERIMENT = (')
  (ideas / 'old.py').write_text('import experiments.grid as grid\nEXPERIMENT = 1\n')
  (ideas / 'wrong.py').write_text(GATE.replace('return state\n', 'return state[..., :4]\n'))
  (ideas / 'option.py').write_text(GATE.replace("': 'gate'", "': 'gate:speed=2'"))
  assert_refused([f'--experiment={arguments[0]}', *arguments[1:]], message, folder, capfd)


def test_a_changed_file_is_named_with_a_new_workdir(folder, capfd):
  run = ['--experiment=my ideas/gated.py', '--variants=gate', f'--workdir={folder}/runs']
  (planned,) = planned_runs(run)
  run_directory.prepare(planned.directory, planned.config)
  (folder / 'my ideas' / 'gated.py').write_text(GATE + '# changed')
  with pytest.raises(ConfigError) as refused:
    plan.check_directories(planned_runs(run))
  assert 'another run (the file gated.py sha256 ' in str(refused.value)
  assert str(refused.value).endswith(f': use --workdir={folder}/runs_2 for this run')
  assert_refused([*run, '--extend', '--config.run.steps=900'], 'my ideas/gated.py has changed: ', folder, capfd)


def planned_runs(arguments):
  with flagsaver.flagsaver():
    parse_flags('train.py', ['train.py', *arguments])
    request = train.request()
    experiment, changes = resolve(request)
    scale = load_config(str(PROJECT / experiment.config))
    return plan.plan_runs(plan.select(experiment, request.variants, []), scale, changes, request.directory())


def command(script: str, *arguments: str, **settings) -> subprocess.CompletedProcess:
  run = [sys.executable, str(PROJECT / script), *arguments]
  return subprocess.run(run, capture_output=True, text=True, timeout=900, **settings)


@pytest.mark.slow
def test_an_idea_is_trained_killed_resumed_inspected_and_edited(folder):
  before = project_files()
  file, directory = folder / 'my ideas' / 'gated.py', folder / 'runs' / 'gated' / 'gate' / 'seed_0'
  arguments = ['--experiment=my ideas/gated.py', *TINY, '--config.run.steps=400', '--config.run.checkpoint_every=10']
  with subprocess.Popen(
    [sys.executable, str(PROJECT / 'train.py'), *arguments, '--variants=gate'],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
  ) as training:  # fmt: skip
    deadline = time.monotonic() + 300
    while not list(directory.glob('checkpoints/*/manifest.json')) and time.monotonic() < deadline:
      time.sleep(0.05)
    os.killpg(training.pid, signal.SIGKILL)
  assert not (directory / 'result.json').exists()
  ended = command('train.py', *arguments)
  assert ended.returncode == 0, ended.stderr
  result = read_result(directory)
  assert result['resumed_at']
  assert result['steps'] == 400
  config = json.loads((directory / 'config.json').read_text())
  assert config['model.idea_file'] == str(file)
  assert 'model.idea' not in json.loads((folder / 'runs/gated/pre/seed_0/config.json').read_text())
  inspection = ['inspect_gradients.py', f'--run={directory}', '--batches=2']
  unnamed = command(*inspection)
  assert (unnamed.returncode, unnamed.stderr.count('\n')) == (2, 1)
  assert f"add '--experiment={file}' to execute that file" in unnamed.stderr
  inspected = command(*inspection, arguments[0])
  assert inspected.returncode == 0, inspected.stderr
  file.write_text(GATE.replace('sigmoid', 'tanh'))
  for refused in (command('train.py', *arguments), command(*inspection, arguments[0])):
    assert refused.returncode == 2
    assert refused.stderr.count('\n') == 1
    assert 'gated.py' in refused.stderr
    assert 'changed' in refused.stderr
  assert command('train.py', *arguments, '--workdir=runs_2', '--config.run.steps=20').returncode == 0
  assert project_files() == before
  assert sorted(path.name for path in file.parent.iterdir()) == ['gated.py']


def project_files() -> list[tuple[Path, int]]:
  """The files of the project, apart from those that Python or a test writes, with their times of modification."""
  found = [path for pattern in ('*.py', '*/**/*.py', 'experiments/**/*.csv') for path in PROJECT.glob(pattern)]
  return sorted((path, path.stat().st_mtime_ns) for path in found if '.venv' not in path.parts)


@pytest.mark.slow
def test_the_guide_runs(tmp_path, monkeypatch):
  """Every file and every command of the guide, in this order; with a smaller model, and fewer steps and seeds."""
  monkeypatch.chdir(tmp_path)
  for path, text in files_of(PAGE).items():
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
  blocks = re.findall(r'^```(\w*)\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)
  assert len([text for language, text in blocks if language == 'python']) == len(files_of(PAGE))
  lines = [line for language, text in blocks if language != 'python' for line in text.splitlines()]
  assert len(lines) > 8
  for line in lines:
    python, script, *arguments = shlex.split(line)
    assert python == 'python'
    small = [*TINY, '--config.run.steps=6']
    if script == 'train.py':
      small = (
        []
        if '--compare' in line or '--list' in line
        else [*small, '--variants=pre,my_gate_open' if '--tune' in line else '--seeds=0,1']
      )
    elif '--run=' in line or '--compare=' in line:
      small = []
    ended = command(script, *arguments, *small)
    assert ended.returncode == 0, f'{line}: {ended.stderr}{ended.stdout}'
  assert list(Path('runs_tuned/my_gate').glob('tuning/my_gate_open/lr_*/seed_100/result.json'))
