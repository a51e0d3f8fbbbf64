"""train.py, from the command line."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver
from in_process import run_main
from rich.console import Console

import train
from lab.analysis.results import load
from lab.cli.command_line import parse_flags
from lab.commands.list_experiments import list_experiments
from lab.commands.request import resolve
from lab.core import registry
from training.config import ConfigError
from training.host import cores

TRAIN = Path(train.__file__)


def test_list_prints_every_experiment_and_variant(capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert run_main('--list') == 0
  output = capsys.readouterr().out
  for name in ('block', 'norm_placement', 'feed_forward', 'residual', 'heads', 'initialisation', 'post_norm', 'rezero'):
    assert name in output
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('width', [50, 60, 80])
def test_a_narrow_list_truncates_no_name(width):
  """Variants whose names differ only in their last letters must be distinguishable."""
  file = io.StringIO()
  list_experiments(Console(file=file, width=width))
  assert '…' not in file.getvalue()
  assert max(map(len, file.getvalue().splitlines())) <= width


def test_help_has_the_flags_of_every_module():
  shown = flags.FLAGS.module_help(train)
  for name in ('experiment', 'tune', 'launcher', 'dry_run', 'slurm_time', 'coordinator', 'estimate', 'status'):
    assert re.search(rf'--(\[no\])?{name}:', shown), name


def test_a_full_disk_is_reported_in_one_line(monkeypatch, capsys):
  def fail(request, console):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr('lab.commands.train.run_request', fail)
  assert run_main() == 1
  message = capsys.readouterr().err
  assert message.startswith('train.py: runs could not be written (No space left on device): earlier saves are')
  assert message.count('\n') == 1


def resolved(*arguments: str):
  with flagsaver.flagsaver():
    parse_flags('train.py', ['train.py', *arguments])
    return resolve(train.request())


def test_flags_are_resolved_to_an_experiment_and_changes():
  assert resolved()[0].name == 'block'
  assert resolved('--experiment=heads', '--config.run.steps=9') == (
    registry.find_experiment('heads'),
    {'run.steps': 9},
  )
  experiment, changes = resolved('--connection=post', '--noresidual', '--noconfig.model.causal', '--name=mine')
  assert (experiment.name, changes) == ('custom', {})
  assert experiment.variants == {
    'mine': {
      'model.connection': 'post', 'model.attention_residual': 0.0, 'model.feed_forward_residual': 0.0,
      'model.causal': False,
    }
  }  # fmt: skip
  assert list(resolved('--config=configs/small.py')[0].variants) == ['default']
  assert resolved('--shared_learning_rate=3e-3')[1] == {'optimizer.learning_rate': 3e-3}
  assert resolved('--tune') == resolved('--experiment=block')
  with pytest.raises(ConfigError, match='omit one of them'):
    resolved('--residual', '--config.model.attention_residual=0')
  assert 'config' in flags.FLAGS


MINI = [
  '--config.model.num_layers=2', '--config.model.d_model=16', '--config.model.unroll=1', '--config.run.steps=12',
  '--config.run.evaluations=3', '--config.run.evaluation_batches=1', '--config.optimizer.warmup_steps=2',
  '--config.data.sequence_length=16', '--config.data.task=files', '--config.data.paths=text*.txt',
]  # fmt: skip


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
  return subprocess.run([sys.executable, TRAIN, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300)


def content_of(directory: Path) -> dict[Path, bytes]:
  """All files except the lock, which contains the id of the last process that held it."""
  return {path: path.read_bytes() for path in directory.rglob('*') if path.is_file() and path.name != 'lock'}


@pytest.mark.slow
def test_an_experiment_is_trained_and_reported_once(tmp_path):
  """In a folder with a space in its name, on the user's files."""
  folder = tmp_path / 'my work'
  folder.mkdir()
  for k in range(2):
    lines = 'in the beginning was the word, and the word was with the block\n' * 400
    (folder / f'text{k}.txt').write_text(f'{k}: {lines}')
  arguments = ['--experiment=block', '--variants=baseline,no_residual', '--seeds=0,1', *MINI]
  first = command(*arguments, cwd=folder)
  assert first.returncode == 0, first.stderr
  directory = folder / 'runs' / 'block'
  assert 'baseline' in first.stdout
  assert first.stdout.rstrip().endswith(os.path.join('runs', 'block', 'report.html'))
  frame = load(folder / 'runs')
  assert list(frame['variant']) == ['baseline', 'baseline', 'no_residual', 'no_residual']
  assert json.loads((directory / 'yardsticks.json').read_text())['bits_per_byte'].keys() == {
    'unigram',
    'bigram',
    'trigram',
  }
  assert list((directory / 'figures').glob('*.svg'))
  content = content_of(directory)
  second = command(*arguments, cwd=folder)
  assert second.returncode == 0, second.stderr
  assert 'seed_0' not in second.stdout  # nothing is trained again
  assert content_of(directory) == content
  other = command(*arguments, '--config.run.batch_size=8', cwd=folder)
  assert other.returncode == 2
  assert 'run.batch_size is 16 there, 8 here' in other.stderr
  assert content_of(directory) == content


@pytest.mark.slow
def test_a_run_is_extended_and_another_starts_from_it(tmp_path):
  (tmp_path / 'text.txt').write_text('in the beginning was the word, and the word was with the block\n' * 400)
  arguments = ['--name=mine', *MINI]
  assert command(*arguments, cwd=tmp_path).returncode == 0
  longer = command(*arguments, '--config.run.steps=20', cwd=tmp_path)
  assert longer.returncode == 2
  assert 'mine/seed_0 holds a run of 12 steps, and 20 are requested: extend it with --extend, or' in longer.stderr
  extended = command(*arguments, '--config.run.steps=20', '--extend', cwd=tmp_path)
  assert extended.returncode == 0, extended.stderr
  assert 'resumes from step 12 and trains to step 20 instead of 12; from here on the cosine schedule' in extended.stdout
  directory = tmp_path / 'runs' / 'custom'
  result = json.loads((directory / 'mine' / 'seed_0' / 'result.json').read_text())
  assert (result['steps'], result['extended_at'], result['init_from']) == (20, [12], None)
  assert 'mine, seed 0: extended at step 12' in json.loads((directory / 'summary.json').read_text())['notes']
  shorter = command(*arguments, '--extend', cwd=tmp_path)
  assert shorter.returncode == 2
  assert 'holds a run of 20 steps, more than the requested 12' in shorter.stderr
  source = str(directory / 'mine' / 'seed_0')
  tuned = command('--name=tuned', f'--init_from={source}', *MINI, cwd=tmp_path)
  assert tuned.returncode == 0, tuned.stderr
  result = json.loads((directory / 'tuned' / 'seed_0' / 'result.json').read_text())
  assert (result['init_from']['run'], result['init_from']['step']) == (source, 20)
  first = [
    json.loads((directory / name / 'seed_0' / 'metrics.jsonl').read_text().splitlines()[0])
    for name in ('mine', 'tuned')
  ]
  assert first[1]['train/loss'] < first[0]['train/loss'] - 0.5
  wrong = command('--name=wrong', f'--init_from={source}', *MINI, '--config.model.d_model=32', cwd=tmp_path)
  assert wrong.returncode == 2
  assert "its model differs from this run's (model.d_model is 16 there, 32 here)" in wrong.stderr
  assert not (directory / 'wrong').exists()


@pytest.mark.slow
def test_a_custom_run_uses_all_cores(tmp_path):
  (tmp_path / 'text.txt').write_text('in the beginning was the word, and the word was with the block\n' * 400)
  ended = command('--connection=post', '--feed_forward=relu', '--noresidual', '--name=mine', *MINI, cwd=tmp_path)
  assert ended.returncode == 0, ended.stderr
  result = json.loads((tmp_path / 'runs' / 'custom' / 'mine' / 'seed_0' / 'result.json').read_text())
  assert result['layout'] == f'1 cpu device(s), {len(cores())} core(s)'
