"""inspect_gradients.py, in separate processes, because its flags collide with those of train.py."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from documented_commands import commands_of

from training.config import Config
from training.files import write_json
from training.loop import train

PROJECT = Path(__file__).parent.parent
TINY = {
  'data.task': 'copy', 'data.sequence_length': 8, 'model.num_layers': 2, 'model.d_model': 8, 'model.num_heads': 2,
  'run.steps': 6, 'run.batch_size': 4, 'run.checkpoint_every': 3, 'optimizer.warmup_steps': 1, 'run.log_every': 1,
}  # fmt: skip

CASES = {
  '': 'pass one of --run',
  '--run=run --experiment=nowhere.py': '--experiment=nowhere.py: no such file',
  '--run=run --experiment=cut.py': 'cut.py, line 1: not valid Python',
  '--experiment=block --experiment=heads': '--experiment is given twice',
  '--run=nowhere': 'there is no run in nowhere: pass a run directory',
  '--run=run --config=configs/tiny.py': 'pass one of --run',
  '--run=run --compare=run': 'pass one of --run',
  '--run=run --connection=post': 'pass one of --run',
  '--run=run --step=3': 'run has no checkpoint yet: inspect its initial parameters with --step=init',
  '--run=run --step=last': 'run has no checkpoint yet',
  '--run=other_version': "other_version/config.json: unknown config key 'model.depth'",
  '--run=damaged': 'damaged/config.json is damaged',
  '--compare=run,run': '--compare names a run twice',
  '--compare=run,nowhere': 'there is no run in nowhere',
  '--depths=4,x': '--depths=4,x: must be numbers of layers',
  '--depths=0': '--depths=0: must be numbers of layers',
  '--depths=4,4': 'names a depth twice',
  '--depths=4 --step=all': '--step=all needs --run or --compare',
  '--depths=4 --config.model.num_heads=3': 'model.num_heads=3 does not divide',
  '--depths=4 --config.run.init_from=run': 'run.init_from',
  '--depths=4 --out=file': '--out=file: ',
  '--depths=4 --out=file/below': 'file is a file, where a folder is needed',
  '--depths=4 --out=~nosuchuser/x': '--out=~nosuchuser/x: no such user',
  '--depths=4 --out=nowhere_link/x': 'nowhere_link is a dangling link',
  '--run=~nosuchuser/runs': '--run=~nosuchuser/runs: no such user',
  '--compare=run,~nosuchuser/b': '--compare=~nosuchuser/b: no such user',
  '--config=~nosuchuser/tiny.py': 'no such user',
  '--run=bad\udcff': 'bad\\udcff: its name is not UTF-8',
  '--run=bad\x07bell': 'bad\\x07bell: its name is not UTF-8, or contains a line break or control character',
  '--depths=4 --config.data.tokenizer=~nosuchuser/t.json': 'no such user',
  '--config=nowhere.py': '--config=nowhere.py: no such file',
  '--depths=4 --batches=1': '--batches=1',
  '--depths=4 --noconfig.model.causal': 'model.causal=False lets every position attend to the token it predicts',
  '--dephts=4': "unknown flag --dephts: did you mean 'depths'?",
  'runs/block': "unexpected argument 'runs/block'",
  '--connection=peri': "model.connection='peri': must be one of pre, post",
}
DRIVER = """
import contextlib, io, json, shlex, sys
from absl import flags
import inspect_gradients
from lab.cli import command_line
for command in sys.argv[1:]:
  assert flags.FLAGS(shlex.split(command))[1:] == [], command
outcomes = {}
for case in json.load(sys.stdin):
  flags.FLAGS.unparse_flags()
  for flag in flags.FLAGS._flags().values():
    flag.unparse()
  sys.argv = ['inspect_gradients.py', *case.split()]
  stderr = io.StringIO()
  with contextlib.redirect_stderr(stderr):
    try:
      command_line.run_command('inspect_gradients.py', inspect_gradients.main)
    except SystemExit as ended:
      outcomes[case] = ended.code, stderr.getvalue()
print(json.dumps(outcomes))
"""


def run_python(*arguments: str, folder: Path, **options) -> subprocess.CompletedProcess:
  environment = {**os.environ, 'PYTHONPATH': str(PROJECT)}
  return subprocess.run(
    [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, **options
  )


def test_documented_commands_parse_and_invalid_ones_are_refused_in_one_line(tmp_path):
  write_json(tmp_path / 'run/config.json', Config().to_flat())
  write_json(tmp_path / 'other_version/config.json', Config().to_flat() | {'model.depth': 3})
  (tmp_path / 'damaged').mkdir()
  (tmp_path / 'damaged/config.json').write_text('{')
  (tmp_path / 'file').write_text('')
  (tmp_path / 'cut.py').write_text('x = (')
  (tmp_path / 'nowhere_link').symlink_to('nowhere')
  before = sorted(tmp_path.rglob('*'))
  documented = commands_of('inspect_gradients')
  assert len(documented) >= 3
  ended = run_python('-c', DRIVER, *documented, folder=tmp_path, input=json.dumps(list(CASES)))
  assert ended.returncode == 0, ended.stderr
  outcomes = json.loads(ended.stdout)
  for case, message in CASES.items():
    code, error = outcomes[case]
    assert (code, error.count('\n')) == (2, 1), (case, error)
    assert error.startswith('inspect_gradients.py: ')
    assert message in error, (case, error)
  assert sorted(tmp_path.rglob('*')) == before


@pytest.fixture(scope='module')
def trained(tmp_path_factory) -> Path:
  """Two runs of an experiment."""
  folder = tmp_path_factory.mktemp('folder with a space')
  for variant, changes in {'baseline': {}, 'post_norm': {'model.connection': 'post'}}.items():
    labels = {'experiment': 'block', 'variant': variant, 'seed': 0}
    train(Config().replace(TINY | changes), folder / f'runs/block/{variant}/seed_0', labels)
  return folder


def inspect(folder: Path, *arguments: str) -> str:
  ended = run_python(str(PROJECT / 'inspect_gradients.py'), '--batches=2', *arguments, folder=folder)
  assert ended.returncode == 0, ended.stderr
  return ended.stdout


@pytest.mark.slow
def test_all_checkpoints_of_a_run_agree_with_its_log(trained):
  run = trained / 'runs/block/post_norm/seed_0'
  log = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
  printed = inspect(trained, '--run=runs/block/post_norm/seed_0', '--step=all')
  folder = run / 'gradients/all'
  for name in ('two_paths', 'norm_by_layer', 'over_training_post_norm', 'update_ratio_post_norm'):
    assert f'runs/block/post_norm/seed_0/gradients/all/{name}.svg' in printed
    assert (folder / f'{name}.png').stat().st_size > 5000
  rows = list(csv.DictReader((folder / 'gradients.csv').read_text().splitlines()))
  assert {row['step'] for row in rows} == {'0', '3', '6'}
  models = json.loads((folder / 'gradients.json').read_text())['models']
  assert [model['step'] for model in models] == [0, 3, 6]
  # The first batch after a checkpoint is that of the next training step.
  first = {row['step']: row for row in log}
  for model in models[:2]:
    logged = first[model['step'] + 1]
    for layer, k in np.ndindex(2, 2):
      name = f'stream_gradient/block_{layer:02d}/{("attention", "feed_forward")[k]}'
      mean, half = (model['measures']['total'][part][layer][k] for part in ('mean', 'half_width'))
      spread = half / 12.706204736432095  # the distance of two values from their mean: Student's t, 1 degree of freedom
      assert min(abs(mean + sign * spread - logged[f'{name}/total']) for sign in (-1, 1)) < 1e-4 * mean


@pytest.mark.slow
def test_two_runs_and_several_depths(trained):
  text = inspect(
    trained, '--compare=runs/block/baseline/seed_0,runs/block/post_norm/seed_0', '--step=6', '--out=compared'
  )
  assert 'baseline' in text
  assert 'post_norm' in text
  assert (trained / 'compared/two_paths.svg').exists()
  fields = [
    f'--config.{path}={value}' for path, value in TINY.items() if 'steps' not in path and 'num_layers' not in path
  ]
  text = inspect(trained, *fields, '--connection=post', '--depths=1,2', '--out=depths')
  assert 'depth^(' in text
  assert (trained / 'depths/norm_by_depth.svg').exists()
  inspect(trained, *fields, '--connection=post', '--out=depths')  # another request, to the same folder
  assert not (trained / 'depths/norm_by_depth.svg').exists()
  inspect(trained, *fields, '--connection=post', '--depths=1,2')
  inspect(trained, *fields, '--connection=post', '--depths=1')
  assert len(list((trained / 'runs/gradients').iterdir())) == 2


@pytest.mark.slow
def test_a_damaged_checkpoint_is_reported(trained, tmp_path):
  run = tmp_path / 'seed_0'
  shutil.copytree(trained / 'runs/block/baseline/seed_0', run)
  (largest,) = sorted((run / 'checkpoints/6').rglob('*'), key=lambda path: path.stat().st_size)[-1:]
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 1
  largest.write_bytes(content)
  ended = run_python(str(PROJECT / 'inspect_gradients.py'), f'--run={run}', folder=tmp_path)
  assert (ended.returncode, ended.stderr.count('\n')) == (2, 1)
  assert 'choose another --step' in ended.stderr
