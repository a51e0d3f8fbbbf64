"""Runs that cannot resume, and unreadable files: one line, exit code 2, and no file written or changed."""

import json
import os
import re
import shutil
from pathlib import Path

import made_run
import pytest
import submitit  # noqa: F401 - before pytest captures output: it closes the logging handlers and their streams
from absl.testing import flagsaver
from in_process import run_main
from refusal import assert_refused

import lab.commands.run_experiment  # noqa: F401 - before the test drops the privileges to read it
import train
from configs.flags import load_config
from lab.cli.command_line import parse_flags
from lab.commands.request import resolve
from lab.core import plan
from training.code_version import PROJECT
from training.data.loading import load_data
from training.files import read_json, write_sealed
from training.run_files import locks

RUN = [
  '--name=mine', '--config.data.task=copy', '--config.data.sequence_length=8', '--config.model.num_layers=1',
  '--config.model.d_model=8', '--config.model.num_heads=2', '--config.model.unroll=1', '--config.run.steps=40',
  '--config.run.batch_size=4', '--config.optimizer.warmup_steps=4',
]  # fmt: skip


@pytest.fixture(scope='module')
def run(tmp_path_factory) -> Path:
  """The run of the command RUN, as if killed after step 36."""
  with flagsaver.flagsaver():
    parse_flags('train.py', ['train.py', *RUN])
    experiment, changes = resolve(train.request())
  scale = load_config(str(PROJECT / experiment.config))
  (planned,) = plan.plan_runs(experiment, scale, changes, Path('runs'))
  return made_run.make_run(tmp_path_factory.mktemp('made'), planned.config, load_data(planned.config))


def change(path: Path, **fields) -> None:
  path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def replace(path: Path, folder: bool) -> None:
  """Replaces a file or folder by an empty one."""
  shutil.rmtree(path) if path.is_dir() else path.unlink()
  path.mkdir() if folder else path.touch()


def spoil_config(run: Path, content: bytes | None) -> None:
  """Also deletes the checkpoints, which contain the config."""
  shutil.rmtree(run / 'checkpoints')
  (run / 'config.json').unlink() if content is None else (run / 'config.json').write_bytes(content)


def change_config(run: Path, **fields) -> None:
  """Changes the config of a run, also in its checkpoints."""
  change(run / 'config.json', **fields)
  for path in run.glob('checkpoints/*/manifest.json'):
    manifest = read_json(path) or {}
    write_sealed(path, {**manifest, 'about': {**manifest['about'], 'run': {**manifest['about']['run'], **fields}}})


def change_data_checksum(run: Path, data_checksum: str) -> None:
  write_sealed(
    run / 'environment.json', {**(read_json(run / 'environment.json') or {}), 'data_checksum': data_checksum}
  )


def change_depth(run: Path) -> None:
  """Changes the config to another depth than that of the checkpoints."""
  change(run / 'config.json', **{'model.num_layers': 2})


@pytest.mark.parametrize(
  ('spoil', 'more', 'message'),
  [
    (lambda run: spoil_config(run, None), [], 'of a run, but no config.json, and no checkpoint identifies the run'),
    (lambda run: spoil_config(run, b'{"model'), [], 'config.json is damaged'),
    (lambda run: spoil_config(run, b'[]'), [], 'config.json is damaged (not a JSON object), and no checkpoint'),
    (lambda run: spoil_config(run, b'\xff'), [], 'config.json is damaged'),
    (lambda run: replace(run / 'config.json', True), [], 'config.json cannot be read: Is a directory'),
    (lambda run: change_config(run, **{'model.d_ff': 7}), [], 'model.d_ff is 7 there, 0 here'),
    (lambda run: change_config(run, **{'model.new': 7}), [], 'model.new is 7 there, None here'),
    (lambda run: change_data_checksum(run, 'x'), [], 'was trained on a different text'),
    (lambda run: (run / 'metrics.jsonl').unlink(), [], 'none is intact; restore'),
    (lambda run: (run / 'metrics.jsonl').write_text('x' * 999), [], 'metrics.jsonl has changed in its first'),
    (lambda run: replace(run / 'metrics.jsonl', True), [], 'metrics.jsonl is a folder, where a file is needed'),
    (lambda run: replace(run / 'checkpoints', False), [], 'checkpoints is a file, where a folder is needed'),
    (lambda run: replace(run / 'tensorboard', False), [], 'tensorboard is a file, where a folder is needed'),
    (
      lambda run: [p.unlink() for p in run.glob('checkpoints/*/manifest.json')],
      [],
      'none is intact; restore',
    ),
    (lambda run: [p.write_text('') for p in run.glob('checkpoints/*/state/_METADATA')], [], '36/state/_METADATA has'),
    (lambda run: [shutil.rmtree(p) for p in run.glob('checkpoints/*/state')], [], 'No such file or directory'),
    (lambda run: None, ['--config.model.d_model=16'], 'model.d_model is 8 there, 16 here'),
    (lambda run: None, ['--config.data.seed=7'], 'data.seed is 0 there, 7 here'),
    (lambda run: None, ['--config.optimizer.name=lion'], "optimizer.name is 'adamw' there, 'lion' here"),
    (lambda run: None, ['--config.model.dtype=bfloat16'], "model.dtype is 'float32' there, 'bfloat16' here"),
    (lambda run: None, ['--init_from=runs/custom/mine/seed_0'], "run.init_from is '' there, 'runs/custom"),
    (lambda run: None, ['--config.run.steps=41'], 'a run of 40 steps, and 41 are requested: extend it with --extend'),
    (lambda run: None, ['--config.run.steps=39'], 'a run of 40 steps, more than the requested 39'),
    (lambda run: None, ['--config.run.steps=39', '--extend'], 'a run of 40 steps, more than the requested 39'),
    (
      change_depth,
      ['--config.model.num_layers=2'],
      'holds a checkpoint of another run (model.num_layers is 1',
    ),
    (
      lambda run: None,
      ['--name=new', '--init_from=runs/custom/mine/seed_0', '--config.model.d_model=16'],
      "--init_from=runs/custom/mine/seed_0: its model differs from this run's (model.d_model is 8 there, 16 here)",
    ),
    (
      lambda run: shutil.rmtree(run / 'checkpoints'),
      ['--name=new', '--init_from=runs/custom/mine/seed_0'],
      'it has no checkpoint: train it first',
    ),
  ],
)
def test_a_run_that_cannot_resume_is_left_unchanged(spoil, more, message, run, user_folder, capfd):
  directory = user_folder / 'runs' / 'custom' / 'mine' / 'seed_0'
  shutil.copytree(run, directory)
  spoil(directory)
  replaced = {flag.partition('=')[0] for flag in more}
  flags = [flag for flag in RUN if flag.partition('=')[0] not in replaced]
  assert_refused([*flags, *more], message, user_folder, capfd)


def test_a_run_that_is_being_trained_is_refused(run, user_folder, capfd, monkeypatch):
  monkeypatch.setattr(locks, 'RELEASE_WITHIN', 0.0)
  directory = user_folder / 'runs' / 'custom' / 'mine' / 'seed_0'
  shutil.copytree(run, directory)
  with locks.locked(directory / 'lock'):
    assert_refused(RUN, f'is being trained by process {os.getpid()} on', user_folder, capfd)


@pytest.mark.parametrize(
  ('name', 'mode', 'arguments', 'message'),
  [
    ('secret.txt', 0, ['--config.data.task=files', '--config.data.paths=secret.txt'], 'cannot read secret.txt'),
    ('secret.py', 0, ['--config=secret.py'], 'secret.py'),
    ('secret.json', 0, ['--config.data.tokenizer=secret.json'], 'secret.json'),
    ('runs/a', 0o555, ['--workdir=runs'], 'is not writable: choose another --workdir'),
    ('runs/a', 0, ['--workdir=runs/a'], 'cannot be read: choose another --workdir'),
    ('runs/custom/mine/seed_0/config.json', 0, RUN, 'config.json cannot be read: Permission denied'),
  ],
)
def test_an_unreadable_or_unwritable_file_is_reported(name, mode, arguments, message, user_folder, capfd, request):
  path = user_folder / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.mkdir() if name == 'runs/a' else path.write_text('{}')
  path.chmod(mode)
  if os.geteuid() == 0:
    for parent in path.parents:
      if user_folder in parent.parents and name.startswith('runs/custom'):
        os.chown(parent, 65534, 65534)
  if mode == 0o555:
    path.parent.chmod(mode)
  request.getfixturevalue('unprivileged')
  assert run_main(*arguments) == 2
  output, error = capfd.readouterr()
  assert output == ''
  assert error.count('\n') == 1
  assert re.match('train.py: ', error)
  assert message in error
