"""Invalid input: one line with the cause and the remedy, exit code 2, and no file written or changed."""

import sys

import pytest
import submitit  # noqa: F401 - before pytest captures output: it closes the logging handlers and their streams
from refusal import assert_refused


def processes(coordinator: str, count: int, index: int) -> list[str]:
  return [f'--coordinator={coordinator}', f'--num_processes={count}', f'--process_id={index}']


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--tune', '--workdir=short.txt'], 'short.txt is a file'),
    (['--tune', '--connection=post'], '--tune needs an experiment file, as in --experiment=block'),
    (['--tune', '--sweep=model.connection=pre,post'], '--tune needs an experiment file, as in --experiment=block'),
    (['--shared_learning_rate=1e-3', '--name=x'], '--shared_learning_rate needs an experiment file'),
    (['--tune', '--shared_learning_rate=4e-3'], 'omit one of them'),
    (
      ['--tune', '--experiment=block', '--config.optimizer.learning_rate=4e-3'],
      '--tune and --config.optimizer.learning_rate both set the learning rate: omit one of them',
    ),
    (
      ['--tune', '--experiment=lr_sensitivity'],
      'the variants of lr_sensitivity set optimizer.learning_rate themselves',
    ),
    (['--tune', '--seeds=0,100'], '--seeds=100: the learning rates of block are tuned on seed 100'),
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
    (['--connection=middle'], "model.connection='middle': must be one of pre, post, "),
    (['--connection=post', '--config.model.connection=pre'], 'different values'),
    (['--feed_forward=tanh'], "model.feed_forward='tanh': must be one of relu, gelu"),
    (['--connection=deepnorm', '--noresidual'], 'sets its own residual scale'),
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
    (['--config=nowhere.py'], 'nowhere.py: no such file'),
    (['--config=short.txt'], 'a scale is a Python file'),
    (['--config=folder'], 'no such file'),
    (['--seeds=one'], "'one' is not a seed"),
    (['--seeds=-1'], "'-1' is not a seed"),
    (['--workers=-1'], 'workers'),
    (['--workers=two'], 'workers=two'),
    (['--name=../../elsewhere', '--connection=post'], 'the name'),
    (['--name=x', '--experiment=block'], '--sweep and --name'),
    (['--sweep=model.connection=pre,pots'], "model.connection='pots': must be one of"),
    (['--sweep=model.conection=pre,post'], "did you mean 'model.connection'"),
    (['--norm_placement=post'], "did you mean 'connection'"),
    (['--sweep=model.norm_placement=pre,post'], 'config key model.norm_placement is now model.connection'),
    (['--experiment=block', '--feed_forward=relu'], 'block/relu/seed_0 has the same config as block/baseline/seed_0'),
    (['--config.run.init_seed=1', '--config.data.seed=1', '--experiment=heads'], 'heads_4/seed_1 has the same config'),
    (['--config.data.seed=5000000000'], 'must be below'),
    (['--workdir=short.txt'], 'short.txt is a file'),
    (['block'], "unexpected argument 'block': every argument must be a flag"),
    (['--config.data.task=files', '--config.data.paths=cut.txt.gz'], 'cut.txt.gz is not an intact gzip file'),
    (
      ['--config.data.task=files', '--config.data.paths=/dev/stdin', '--name=x'],
      '/dev/stdin is a different file in each process',
    ),
    (['--config.data.task=files', '--config.data.paths=/dev/zero', '--name=x'], '/dev/zero is a device'),
    (['--config.data.task=files', '--config.data.paths=noise.txt'], 'noise.txt contains NUL bytes'),
    (['--config.data.tokenizer=/dev/zero', '--name=x'], '/dev/zero is a device'),
    (['--config.data.task=files', '--config.data.paths=noise.jsonl'], 'noise.jsonl, line 1 is not JSON'),
    (['--config.data.task=files', '--config.data.paths=gigantic.jsonl'], 'gigantic.jsonl, line 1 is not JSON'),
    (
      ['--config.data.task=files', '--config.data.paths=other.jsonl'],
      "no text in the field 'text': set data.text_field",
    ),
    (['--config.data.task=files', '--config.data.paths=,', '--name=x'], 'names no file: set paths or globs'),
    (['--config.data.tokenizer=short.txt'], 'short.txt'),
    (['--config=raises.py'], 'raises.py, line 2: ZeroDivisionError'),
    (['--config=nothing.py'], 'nothing.py: needs a function get_config()'),
    (['--config=typo.py'], 'typo.py: not valid Python'),
    (['--seeds=1,,2'], "'' is not a seed"),
    (['--seeds=99999999999'], 'must be below'),
    (['--experiment=../block'], '--experiment=../block: no such file'),
    (['--name=.hidden'], "the name '.hidden' is not a valid folder name"),
    (['--name=a/b'], "the name 'a/b' is not a valid folder name"),
    (['--name=' + 'x' * 201], 'use up to 200 letters, digits and _ . = + -'),
    (['--sweep=;'], '--sweep is empty'),
    (['--sweep=model.d_model'], "cannot parse 'model.d_model'; write key=value,value"),
    (['--sweep=model.d_model=64,64'], '--sweep contains d_model=64 twice'),
    (['--sweep=model.d_model=wide'], 'model.d_model=wide: must be a whole number'),
    (['--noconfig.model.causal', '--name=x'], 'model.causal=False lets every position attend to the token it predicts'),
    (['--sweep=model.causal=true,false'], 'data.task=kjv is next-token prediction: set model.causal=True'),
    (['--sweep=model.causal=false;data.task=copy,associative_recall'], 'data.task=copy is next-token prediction'),
    (['--sweep=model.causal=yes'], 'model.causal=yes: must be true or false'),
    (
      ['--sweep=model.d_model=64,32', '--config.model.d_model=16'],
      'set both by --sweep and by another flag',
    ),
    (['--sweep=model.d_model=64,32', '--name=block'], '--name=block is the name of an experiment'),
    (['--sweep=data.paths=/etc/passwd,x'], 'data.paths is used only with data.task=files'),
    (['--init_from=nowhere', '--name=x'], '--init_from=nowhere: not a run (no config.json)'),
    (['--init_from=short.txt', '--name=x'], '--init_from=short.txt: not a run (no config.json)'),
    (['--init_from=a', '--config.run.init_from=b', '--name=x'], 'omit one of them'),
    (['--workdir=short.txt/runs'], 'short.txt is a file'),
    (['--launcher=slrum'], 'should be one of <local|slurm>'),
    (['--slurm_gpus=1'], '--slurm_gpus requires --launcher=slurm: add that, or omit this flag'),
    (['--launcher=local', '--slurm_time=1:00:00'], '--slurm_time requires --launcher=slurm'),
    (['--launcher=slurm', '--slurm_time=soon'], '--slurm_time=soon: write minutes, hours:minutes:seconds or'),
    (['--launcher=slurm', '--slurm_time=1', '--dry_run'], '--slurm_time=1: must be at least 3 minutes'),
    (['--launcher=slurm', '--slurm_gpus=-1'], 'slurm_gpus'),
    (['--dry_run', '--config.data.task=files', '--config.data.paths=nowhere.txt'], 'nowhere.txt'),
    (
      ['--name=x', '--config.mesh.data=3'],
      'run.batch_size=16 cannot be split evenly over 3 devices (mesh.data=3, mesh.fsdp=1)',
    ),
    (
      ['--name=x', '--config.mesh.fsdp=4', '--config.optimizer.accumulate=8'],
      'run.batch_size=16 in optimizer.accumulate=8 parts cannot be split evenly over 4 devices (mesh.data=1, '
      'mesh.fsdp=4): make it a multiple of 32',
    ),
    (['--experiment=block', '--config.mesh.data=2'], 'need 2 devices, not the one device of this run'),
    (['--name=x', '--process_id=1'], '--num_processes and --process_id go together: set all three, or none'),
    (['--name=x', *processes('nowhere', 2, 0)], '--coordinator=nowhere: write host:port, as in'),
    (['--name=x', *processes('node:port', 2, 0)], '--coordinator=node:port: write host:port, as in'),
    (['--name=x', *processes('node:1', 0, 0)], '--num_processes=0: must be at least 1'),
    (['--name=x', *processes('node:1', 2, 2)], '--process_id=2: must be between 0 and 1, with --num_processes=2'),
    (['--name=x', *processes('node:1', 2, -1)], '--process_id=-1: must be between 0 and 1'),
    (['--tune', *processes('node:1', 2, 0)], '2 processes train one run together, but this command has 20: start'),
    (
      ['--name=x', '--config.mesh.data=4', *processes('node:1', 3, 0)],
      'mesh.data=4 and mesh.fsdp=1 need 4 devices, not the 6 devices of this run',
    ),
    (['--name=x', *processes('localhost:1', 2, 1)], '--coordinator=localhost:1 could not be reached within 0.1 s'),
  ],
)
def test_invalid_input_is_one_line_and_writes_nothing(arguments, message, user_folder, capfd, monkeypatch):
  monkeypatch.setattr('lab.launch.distributed.JOIN_TIMEOUT', 0.1)
  assert_refused(arguments, message, user_folder, capfd)


@pytest.mark.parametrize('more', [[], ['--tune'], ['--name=x']])
def test_without_slurm_the_slurm_launcher_is_refused(more, user_folder, capfd, monkeypatch):
  monkeypatch.setenv('PATH', str(user_folder))
  assert_refused(
    ['--launcher=slurm', *more],
    '--launcher=slurm: sbatch was not found; run this on a machine with Slurm',
    user_folder,
    capfd,
  )
  monkeypatch.setitem(sys.modules, 'submitit', None)
  for flags in ([], ['--dry_run']):
    message = '--launcher=slurm needs submitit: pip install -r requirements-slurm.txt'
    assert_refused(['--launcher=slurm', *flags, *more], message, user_folder, capfd)


def test_the_variable_that_sets_the_number_of_devices_is_reported(user_folder, capfd, monkeypatch):
  monkeypatch.delenv('XLA_FLAGS', raising=False)
  monkeypatch.setenv('JAX_NUM_CPU_DEVICES', '3')
  message = 'make it a multiple of 3; JAX_NUM_CPU_DEVICES=3 sets this number of devices'
  assert_refused(['--name=x', '--config.data.task=copy'], message, user_folder, capfd)
