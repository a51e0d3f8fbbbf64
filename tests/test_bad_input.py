"""Bad input: one line that names the thing and the remedy, exit code 2, and nothing written or changed."""

import gzip
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import made_run
import pytest
import submitit  # noqa: F401 - before pytest captures: it closes the handlers of logging, and their streams with them
from absl.testing import flagsaver
from in_process import run_main

import experiments.conduct  # noqa: F401 - before the privileges to read it are dropped
import train
from configs.flags import load_config
from experiments import plan
from experiments.command_line import parse_flags
from training import run_directory
from training.data import load_for


@pytest.fixture
def place(monkeypatch):
  """Where the command is given: a folder that is anybody's, with what a person might have lying about."""
  folder = Path(tempfile.mkdtemp())
  folder.chmod(0o777)
  monkeypatch.chdir(folder)
  (folder / 'empty.txt').touch()
  (folder / 'short.txt').write_text('In the beginning')
  (folder / 'folder').mkdir()
  (folder / 'cut.txt.gz').write_bytes(gzip.compress(b'In the beginning' * 1000)[:-9])
  (folder / 'noise.jsonl').write_bytes(bytes(range(256)) * 9)
  (folder / 'gigantic.jsonl').write_text('[' * 5_000_000)
  (folder / 'other.jsonl').write_text(json.dumps({'content': 'In the beginning'}))
  (folder / 'raises.py').write_text('def get_config():\n  return 1 / 0\n')
  (folder / 'nothing.py').write_text('x = 1\n')
  (folder / 'typo.py').write_text('def get_config(:\n')
  yield folder
  shutil.rmtree(folder)


def content_of(folder: Path) -> dict[str, bytes | None]:
  return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob('*')}


def refused(arguments: list[str], message: str, place: Path, capfd) -> None:
  before = content_of(place)
  assert run_main(*arguments) == 2
  output, error = capfd.readouterr()
  assert output == ''
  assert error.count('\n') == 1
  assert error.startswith('train.py: ')
  assert message in error
  assert content_of(place) == before


def processes(coordinator: str, count: int, index: int) -> list[str]:
  return [f'--coordinator={coordinator}', f'--num_processes={count}', f'--process_id={index}']


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--tune', '--workdir=short.txt'], 'short.txt is a file'),
    (['--tune', '--norm_placement=post'], '--tune is for the variants of an experiment'),
    (['--tune', '--sweep=model.norm_placement=pre,post'], '--tune is for the variants of an experiment'),
    (['--shared_learning_rate=1e-3', '--name=x'], '--shared_learning_rate is for the variants of an experiment'),
    (['--tune', '--shared_learning_rate=4e-3'], 'all the same: leave one out'),
    (
      ['--tune', '--experiment=block', '--config.optimizer.learning_rate=4e-3'],
      '--tune and --config.optimizer.learning_rate set the same: leave one out',
    ),
    (
      ['--tune', '--experiment=lr_sensitivity'],
      'the variants of lr_sensitivity set optimizer.learning_rate themselves',
    ),
    (['--tune', '--seeds=0,100'], '--seeds=100: the learning rates of block are chosen on seed 100'),
    (['--shared_learning_rate=0'], 'optimizer.learning_rate=0.0: must be above 0'),
    (['--shared_learning_rate=fast'], 'shared_learning_rate=fast'),
    (['--experiment=blok'], "unknown experiment 'blok': did you mean 'block'?"),
    (['--variants=rellu'], "unknown variant of block 'rellu': did you mean 'relu'?"),
    (['--variantz=relu'], "unknown flag --variantz: did you mean 'variants'?"),
    (['--config.num_layers=3'], "did you mean 'config.model.num_layers'?"),
    (['--confg=configs/small.py'], "did you mean 'config'?"),
    (['--config.model.num_layer=3'], "did you mean 'config.model.num_layers'?"),
    (['--config.model.num_layers=many'], 'num_layers=many'),
    (['--config.model.num_layers=0'], 'model.num_layers=0: must be at least 1'),
    (['--config.model.num_layers=-1'], 'model.num_layers=-1: must be at least 1'),
    (['--config.model.num_heads=5'], 'model.num_heads=5 does not divide model.d_model=64: 4 does'),
    (['--norm_placement=middle'], 'should be one of <pre|post|'),
    (['--norm_placement=post', '--config.model.norm_placement=pre'], 'different things'),
    (['--feed_forward=tanh'], 'should be one of <relu|'),
    (['--norm_placement=deepnorm', '--noresidual'], 'sets its own residual scale'),
    (['--config.optimizer.learning_rate=-1'], 'optimizer.learning_rate=-1.0: must be above 0'),
    (['--config.optimizer.learning_rate=fast'], 'learning_rate=fast'),
    (['--config.optimizer.learning_rate=nan'], 'must be a finite number'),
    (['--config.optimizer.warmup_steps=300'], 'leaves no step'),
    (['--config.run.batch_size=100000'], 'too few for a batch of 100000: set run.batch_size='),
    (
      ['--config.data.sequence_length=100', '--config.model.position=learned'],
      'longer than the learned position table',
    ),
    (['--config.data.task=files'], 'needs data.paths'),
    (['--config.data.task=files', '--config.data.paths=nowhere.txt'], 'nowhere.txt'),
    (['--config.data.task=files', '--config.data.paths=empty.txt'], 'empty'),
    (['--config.data.task=files', '--config.data.paths=short.txt'], 'short'),
    (['--config.data.task=files', '--config.data.paths=folder'], 'folder'),
    (['--config.data.paths=short.txt'], 'only with data.task=files'),
    (['--config.data.tokenizer=nowhere.json'], 'nowhere.json'),
    (['--config.model.vocab_size=64'], 'set model.vocab_size=256'),
    (['--config=nowhere.py'], 'nowhere.py: there is no such file'),
    (['--config=short.txt'], 'a config is a Python file'),
    (['--config=folder'], 'there is no such file'),
    (['--seeds=one'], "'one' is not a seed"),
    (['--seeds=-1'], "'-1' is not a seed"),
    (['--workers=-1'], 'workers'),
    (['--workers=two'], 'workers=two'),
    (['--name=../../elsewhere', '--norm_placement=post'], 'the name'),
    (['--name=x', '--experiment=block'], '--sweep and --name'),
    (['--sweep=model.norm_placement=pre,pots'], "model.norm_placement='pots': must be one of"),
    (['--sweep=model.norm_placment=pre,post'], "did you mean 'model.norm_placement'"),
    (['--experiment=block', '--feed_forward=relu'], 'block/relu/seed_0 is the same as block/baseline/seed_0'),
    (['--config.run.init_seed=1', '--config.data.seed=1', '--experiment=heads'], 'heads/heads_4/seed_1 is the same'),
    (['--config.data.seed=5000000000'], 'must be below'),
    (['--workdir=short.txt'], 'short.txt is a file'),
    (['block'], "what is 'block'?"),
    (['--config.data.task=files', '--config.data.paths=cut.txt.gz'], 'cut.txt.gz is not a whole gzip file'),
    (['--config.data.task=files', '--config.data.paths=noise.jsonl'], 'noise.jsonl, line 1 is not JSON'),
    (['--config.data.task=files', '--config.data.paths=gigantic.jsonl'], 'gigantic.jsonl, line 1 is not JSON'),
    (
      ['--config.data.task=files', '--config.data.paths=other.jsonl'],
      "no text in the field 'text': set data.text_field",
    ),
    (['--config.data.task=files', '--config.data.paths=,', '--name=x'], 'names no file: give paths or globs'),
    (['--config.data.tokenizer=short.txt'], 'short.txt'),
    (['--config=raises.py'], 'raises.py, line 2: ZeroDivisionError'),
    (['--config=nothing.py'], 'nothing.py: needs a function get_config()'),
    (['--config=typo.py'], 'typo.py: not Python'),
    (['--seeds=1,,2'], "'' is not a seed"),
    (['--seeds=99999999999'], 'must be below'),
    (['--experiment=../block'], "unknown experiment '../block'"),
    (['--name=.hidden'], "the name '.hidden' would be that of a folder"),
    (['--name=a/b'], "the name 'a/b' would be that of a folder"),
    (['--name=' + 'x' * 201], 'give one of up to 200 letters'),
    (['--sweep=;'], '--sweep is empty'),
    (['--sweep=model.d_model'], "cannot read 'model.d_model'; write key=value,value"),
    (['--sweep=model.d_model=64,64'], '--sweep names d_model=64 twice'),
    (['--sweep=model.d_model=wide'], 'model.d_model=wide: must be a whole number'),
    (['--sweep=model.causal=yes'], 'model.causal=yes: must be true or false'),
    (['--sweep=model.d_model=64,32', '--config.model.d_model=16'], 'both swept over and set by a flag'),
    (['--sweep=model.d_model=64,32', '--name=block'], '--name=block is the name of an experiment'),
    (['--sweep=data.paths=/etc/passwd,x'], 'would be that of a folder'),
    (['--init_from=nowhere', '--name=x'], '--init_from=nowhere: there is no run (no config.json)'),
    (['--init_from=short.txt', '--name=x'], '--init_from=short.txt: there is no run (no config.json)'),
    (['--init_from=a', '--config.run.init_from=b', '--name=x'], 'different things'),
    (['--workdir=short.txt/runs'], 'short.txt is a file'),
    (['--launcher=slrum'], 'should be one of <local|slurm>'),
    (['--slurm_gpus=1'], '--slurm_gpus is for --launcher=slurm: add that, or leave this out'),
    (['--launcher=local', '--slurm_time=1:00:00'], '--slurm_time is for --launcher=slurm'),
    (['--launcher=slurm', '--slurm_time=soon'], '--slurm_time=soon: write minutes, hours:minutes:seconds or'),
    (['--launcher=slurm', '--slurm_time=1', '--dry_run'], '--slurm_time=1: must be at least 3 minutes'),
    (['--launcher=slurm', '--slurm_gpus=-1'], 'slurm_gpus'),
    (['--dry_run', '--config.data.task=files', '--config.data.paths=nowhere.txt'], 'nowhere.txt'),
    (
      ['--name=x', '--config.mesh.data=3'],
      'run.batch_size=16 does not divide over 3 devices (mesh.data=3, mesh.fsdp=1)',
    ),
    (
      ['--name=x', '--config.mesh.fsdp=4', '--config.optimizer.accumulate=8'],
      'run.batch_size=16, taken in optimizer.accumulate=8 parts, does not divide over 4 devices (mesh.data=1, '
      'mesh.fsdp=4): make it a multiple of 32',
    ),
    (['--experiment=block', '--config.mesh.data=2'], 'make 2 devices, which is not the one device that this run has'),
    (['--name=x', '--process_id=1'], '--num_processes and --process_id go together: give all three, or none'),
    (['--name=x', *processes('nowhere', 2, 0)], '--coordinator=nowhere: write host:port, as in'),
    (['--name=x', *processes('node:port', 2, 0)], '--coordinator=node:port: write host:port, as in'),
    (['--name=x', *processes('node:1', 0, 0)], '--num_processes=0: must be at least 1'),
    (['--name=x', *processes('node:1', 2, 2)], '--process_id=2: of 2 processes, counted from 0, the last is 1'),
    (['--name=x', *processes('node:1', 2, -1)], '--process_id=-1: of 2 processes, counted from 0, the last is 1'),
    (['--tune', *processes('node:1', 2, 0)], '2 processes train one run together, and this is 20: give each'),
    (
      ['--name=x', '--config.mesh.data=4', *processes('node:1', 3, 0)],
      'mesh.data=4 and mesh.fsdp=1 make 4 devices, which is not the 6 devices that this run has',
    ),
    (['--name=x', *processes('localhost:1', 2, 1)], '--coordinator=localhost:1 could not be reached within 0.1 s'),
  ],
)
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(arguments, message, place, capfd, monkeypatch):
  monkeypatch.setattr('experiments.processes.PATIENCE', 0.1)
  refused(arguments, message, place, capfd)


@pytest.mark.parametrize('more', [[], ['--tune'], ['--name=x']])
def test_where_there_is_no_slurm_it_is_said(more, place, capfd, monkeypatch):
  monkeypatch.setenv('PATH', str(place))
  refused(
    ['--launcher=slurm', *more], '--launcher=slurm: there is no sbatch here; run this where Slurm is', place, capfd
  )
  monkeypatch.setitem(sys.modules, 'submitit', None)
  for what in ([], ['--dry_run']):
    message = '--launcher=slurm needs submitit: pip install -r requirements-slurm.txt'
    refused(['--launcher=slurm', *what, *more], message, place, capfd)


RUN = [
  '--name=mine', '--config.data.task=copy', '--config.data.sequence_length=8', '--config.model.num_layers=1',
  '--config.model.d_model=8', '--config.model.num_heads=2', '--config.model.unroll=1', '--config.run.steps=40',
  '--config.run.batch_size=4', '--config.optimizer.warmup_steps=4',
]  # fmt: skip


@pytest.fixture(scope='module')
def run(tmp_path_factory) -> Path:
  """What the command RUN leaves when it is killed after step 36."""
  with flagsaver.flagsaver():
    parse_flags('train.py', ['train.py', *RUN])
    experiment, changes = train.asked_for()
  scale = load_config(str(train.PROJECT / experiment.config))
  (planned,) = plan.plan_runs(experiment, scale, changes, Path('runs'))
  return made_run.make_run(tmp_path_factory.mktemp('made'), planned.config, load_for(planned.config))


def change(path: Path, **fields) -> None:
  path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def in_its_place(path: Path, folder: bool) -> None:
  shutil.rmtree(path) if path.is_dir() else path.unlink()
  path.mkdir() if folder else path.touch()


def with_other_checkpoints(run: Path) -> None:
  """The run's own config says another depth than its checkpoints."""
  change(run / 'config.json', **{'model.num_layers': 2})


@pytest.mark.parametrize(
  ('spoil', 'more', 'message'),
  [
    (lambda run: (run / 'config.json').unlink(), [], 'of a run whose config.json is gone: delete it, or'),
    (lambda run: (run / 'config.json').write_text('{"model'), [], 'config.json is damaged'),
    (lambda run: (run / 'config.json').write_text('[]'), [], 'config.json is damaged (not a JSON object)'),
    (lambda run: (run / 'config.json').write_bytes(b'\xff'), [], 'config.json is damaged'),
    (lambda run: in_its_place(run / 'config.json', True), [], 'config.json cannot be read: Is a directory'),
    (lambda run: change(run / 'config.json', **{'model.d_ff': 7}), [], 'model.d_ff is 7 there, 0 here'),
    (lambda run: change(run / 'config.json', **{'model.new': 7}), [], 'model.new is 7 there, None here'),
    (lambda run: (run / 'environment.json').write_text(''), [], 'environment.json is damaged'),
    (lambda run: change(run / 'environment.json', data_checksum='x'), [], 'was begun on another text'),
    (lambda run: (run / 'result.json').write_text('{'), [], 'result.json is damaged'),
    (lambda run: (run / 'metrics.jsonl').unlink(), [], 'none is whole; delete'),
    (lambda run: (run / 'metrics.jsonl').write_text('x' * 999), [], 'metrics.jsonl has changed in its first'),
    (lambda run: in_its_place(run / 'metrics.jsonl', True), [], 'metrics.jsonl is a folder, and a file is needed'),
    (lambda run: in_its_place(run / 'checkpoints', False), [], 'checkpoints is a file, and a folder is needed'),
    (lambda run: in_its_place(run / 'tensorboard', False), [], 'tensorboard is a file, and a folder is needed'),
    (lambda run: [p.unlink() for p in run.glob('checkpoints/*/manifest.json')], [], 'none is whole; delete'),
    (lambda run: [p.write_text('') for p in run.glob('checkpoints/*/state/_METADATA')], [], '36/state/_METADATA has'),
    (lambda run: [shutil.rmtree(p) for p in run.glob('checkpoints/*/state')], [], 'No such file or directory'),
    (lambda run: None, ['--config.model.d_model=16'], 'model.d_model is 8 there, 16 here'),
    (lambda run: None, ['--config.data.seed=7'], 'data.seed is 0 there, 7 here'),
    (lambda run: None, ['--config.optimizer.name=lion'], "optimizer.name is 'adamw' there, 'lion' here"),
    (lambda run: None, ['--config.model.dtype=bfloat16'], "model.dtype is 'float32' there, 'bfloat16' here"),
    (lambda run: None, ['--init_from=runs/custom/mine/seed_0'], "run.init_from is '' there, 'runs/custom"),
    (lambda run: None, ['--config.run.steps=41'], 'a run of 40 steps, and 41 are asked for: --extend takes it there'),
    (lambda run: None, ['--config.run.steps=39'], 'a run of 40 steps, more than the 39 asked for'),
    (lambda run: None, ['--config.run.steps=39', '--extend'], 'a run of 40 steps, more than the 39 asked for'),
    (
      with_other_checkpoints,
      ['--config.model.num_layers=2'],
      'holds a checkpoint of another run (model.num_layers is 1',
    ),
    (
      lambda run: None,
      ['--name=new', '--init_from=runs/custom/mine/seed_0', '--config.model.d_model=16'],
      '--init_from=runs/custom/mine/seed_0: its model is another one (model.d_model is 8 there, 16 here)',
    ),
    (
      lambda run: shutil.rmtree(run / 'checkpoints'),
      ['--name=new', '--init_from=runs/custom/mine/seed_0'],
      'it has no checkpoint: train it first',
    ),
  ],
)
def test_a_run_that_cannot_go_on_is_left_as_it_is(spoil, more, message, run, place, capfd):
  directory = place / 'runs' / 'custom' / 'mine' / 'seed_0'
  shutil.copytree(run, directory)
  spoil(directory)
  named = [flag for flag in RUN if flag.partition('=')[0] not in {more_flag.partition('=')[0] for more_flag in more}]
  refused([*named, *more], message, place, capfd)


def test_a_run_that_is_being_trained_is_left_alone(run, place, capfd):
  directory = place / 'runs' / 'custom' / 'mine' / 'seed_0'
  shutil.copytree(run, directory)
  with run_directory.locked(directory / 'lock'):
    refused(RUN, f'is being trained by process {os.getpid()} on', place, capfd)


@pytest.fixture
def unprivileged():
  """Whoever runs the tests: for root nothing is forbidden."""
  if os.geteuid() == 0:
    os.setresuid(65534, 65534, 0)
    yield
    os.setresuid(0, 0, 0)
  else:
    yield


@pytest.mark.parametrize(
  ('name', 'mode', 'arguments', 'message'),
  [
    ('secret.txt', 0, ['--config.data.task=files', '--config.data.paths=secret.txt'], 'cannot read secret.txt'),
    ('secret.py', 0, ['--config=secret.py'], 'secret.py'),
    ('secret.json', 0, ['--config.data.tokenizer=secret.json'], 'secret.json'),
    ('runs/a', 0o555, ['--workdir=runs'], 'cannot be written to: choose another --workdir'),
    ('runs/a', 0, ['--workdir=runs/a'], 'cannot be looked into: choose another --workdir'),
    ('runs/custom/mine/seed_0/config.json', 0, RUN, 'config.json cannot be read: Permission denied'),
  ],
)
def test_what_may_not_be_read_or_written_is_named(name, mode, arguments, message, place, capfd, request):
  path = place / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.mkdir() if name == 'runs/a' else path.write_text('{}')
  path.chmod(mode)
  if os.geteuid() == 0:
    for made in path.parents:
      if place in made.parents and name.startswith('runs/custom'):
        os.chown(made, 65534, 65534)
  if mode == 0o555:
    path.parent.chmod(mode)
  request.getfixturevalue('unprivileged')
  assert run_main(*arguments) == 2
  output, error = capfd.readouterr()
  assert output == ''
  assert error.count('\n') == 1
  assert re.match('train.py: ', error)
  assert message in error
