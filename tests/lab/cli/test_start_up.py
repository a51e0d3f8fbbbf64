"""A shell's variables, a user without a home, closed streams, another system: what a command makes of them at first."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.cli import start_up
from training import home
from training.cache import cache_directory

PROJECT = Path(start_up.__file__).parents[2]
INSPECT = '--config.model.num_layers=1', '--config.data.task=copy', '--step=all'
COMMANDS = [
  [str(PROJECT / 'train.py'), '--list'],
  [str(PROJECT / 'reproduce.py'), '--only=nothing'],
  [str(PROJECT / 'inspect_gradients.py'), *INSPECT],
]


@pytest.mark.parametrize(
  ('name', 'value', 'told'),
  [
    ('JAX_ENABLE_X64', '1', 'JAX_ENABLE_X64=1 is ignored: the config sets the dtypes'),
    ('JAX_ENABLE_X64', 'garbage', 'JAX_ENABLE_X64=garbage is ignored: the config sets the dtypes'),
    ('JAX_NUMPY_DTYPE_PROMOTION', 'strict', 'JAX_NUMPY_DTYPE_PROMOTION=strict is ignored: the config sets the dtypes'),
    ('JAX_DEBUG_NANS', 'True', 'JAX_DEBUG_NANS=True is ignored: a run that diverges is reported as such'),
    ('JAX_ENABLE_X64', 'False', None),
    ('JAX_DISABLE_JIT', '', None),
    ('JAX_TRANSFER_GUARD', 'log', None),
    ('JAX_CPU_COLLECTIVES_IMPLEMENTATION', 'gloo', None),
    ('JAX_NUMPY_DTYPE_PROMOTION', 'Standard', None),
  ],
)
def test_what_blocklab_cannot_run_with_is_unset(name, value, told):
  environment = {name: value, 'JAX_DEFAULT_PRNG_IMPL': 'rbg'}  # which decides numbers, and is the user's to decide
  assert start_up.unset_harmful(environment) == ([told] if told else [])
  assert environment == {'JAX_DEFAULT_PRNG_IMPL': 'rbg'}


def test_xla_has_as_many_threads_as_there_is_cpu_time_for(monkeypatch):
  """Also where a build system has set the variable, and in commands that train nothing."""
  monkeypatch.setattr('training.host.cores', lambda: [3, 5])
  monkeypatch.setattr('os.environ', {'NPROC': '64', 'BLOCKLAB_CACHE': '/x', 'MPLCONFIGDIR': '/y', 'HOME': '/z'})
  start_up.prepare('train.py')
  assert os.environ['NPROC'] == '2'


def test_jaxs_own_choice_of_gpus_is_made_cudas():
  environment = {'JAX_CUDA_VISIBLE_DEVICES': '2,3'}
  assert start_up.unset_harmful(environment) == []
  assert environment == {'CUDA_VISIBLE_DEVICES': '2,3'}
  assert start_up.unset_harmful(environment | {'JAX_CUDA_VISIBLE_DEVICES': 'all'}) == []


@pytest.mark.parametrize(
  ('name', 'value', 'reason'),
  [
    ('XLA_FLAGS', '--xla_no_such_flag=1', 'Unknown flag in XLA_FLAGS: --xla_no_such_flag=1'),
    ('JAX_DEFAULT_MATMUL_PRECISION', 'garbage', 'Invalid value "garbage" for JAX flag jax_default_matmul_precision'),
    ('JAX_PLATFORMS', 'cuda', 'there is no such device here, or its plugin is not installed'),
  ],
)
def test_what_jax_does_not_start_with_is_one_line(name, value, reason, monkeypatch):
  for other in os.environ:
    if other.startswith(start_up.PROBED):
      monkeypatch.delenv(other)
  monkeypatch.setenv(name, value)
  problem = start_up.jax_problem(os.environ)
  assert problem.startswith(f'JAX does not start with {name}={value}: ')
  assert reason in problem
  assert '\n' not in problem


def test_a_login_node_needs_no_gpu_to_submit_jobs_that_do(monkeypatch):
  asked = []
  monkeypatch.setenv('JAX_PLATFORMS', 'cuda')
  monkeypatch.setattr(start_up, 'jax_problem', lambda environment: asked.append('JAX_PLATFORMS' in environment))
  start_up.check_jax('train.py')
  start_up.check_jax('train.py', trains_here=False)
  assert asked == [True, False]


def test_where_nothing_is_set_nobody_is_asked(monkeypatch):
  monkeypatch.setattr('subprocess.run', None)
  usual = {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '', 'JAX_COMPILATION_CACHE_DIR': '/x', 'PATH': '/bin'}
  assert start_up.jax_problem(usual) is None


@pytest.fixture
def nobody(tmp_path, monkeypatch):
  """A user whom the system does not know, as of `docker run --user 12345`."""
  for name in ('HOME', 'XDG_CACHE_HOME', 'XDG_CONFIG_HOME', 'BLOCKLAB_CACHE', 'MPLCONFIGDIR'):
    monkeypatch.delenv(name, raising=False)

  def unknown(number):
    raise KeyError(f'getpwuid(): uid not found: {number}')

  monkeypatch.setattr('pwd.getpwuid', unknown)
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  return tmp_path / f'blocklab-{os.getuid()}'


def test_a_user_without_a_home_has_caches_in_a_folder_of_their_own(nobody):
  environment: dict[str, str] = {}
  (line,) = start_up.keep_caches_somewhere(environment)
  assert line.startswith(f'there is no home folder: what is kept between runs is in {nobody};')
  assert environment == {'BLOCKLAB_CACHE': f'{nobody}/blocklab_cache', 'MPLCONFIGDIR': f'{nobody}/mplconfigdir'}
  assert all(Path(folder).is_dir() for folder in environment.values())
  assert nobody.stat().st_mode & 0o777 == 0o700
  assert start_up.keep_caches_somewhere(environment) == []  # a worker's
  assert cache_directory() == nobody  # of whoever imports us without a command


@pytest.mark.parametrize('system', ['linux', 'darwin'])
def test_a_home_that_cannot_be_written_is_told(system, nobody, monkeypatch):
  monkeypatch.setattr('sys.platform', system)
  monkeypatch.setenv('HOME', '/proc/nowhere')
  (line,) = start_up.keep_caches_somewhere({})
  assert line.startswith('/proc/nowhere cannot be written: what is kept between runs is in ')
  chosen = {'XDG_CACHE_HOME': str(nobody.parent), 'XDG_CONFIG_HOME': str(nobody.parent)}
  if system == 'linux':
    assert start_up.keep_caches_somewhere(chosen) == []
    (line,) = start_up.keep_caches_somewhere(chosen | {'XDG_CACHE_HOME': 'here'})
    assert line.startswith('XDG_CACHE_HOME and XDG_CONFIG_HOME must be absolute paths, and here is none: what is kept')
    (line,) = start_up.keep_caches_somewhere(chosen | {'XDG_CONFIG_HOME': '/proc/else'})
    assert line.startswith('/proc/else cannot be written: what is kept between runs is in ')
  assert start_up.keep_caches_somewhere({'BLOCKLAB_CACHE': '/x', 'MPLCONFIGDIR': '/y'}) == []


@pytest.mark.parametrize('planted', ['of another user', 'open to all', 'a link'])
def test_a_temporary_folder_that_somebody_planted_is_not_used(planted, nobody, monkeypatch, tmp_path):
  """Compiled programs are read from it."""
  if planted == 'a link':
    (tmp_path / 'elsewhere').mkdir()
    nobody.symlink_to(tmp_path / 'elsewhere')
  else:
    nobody.mkdir()
    nobody.chmod(0o777 if planted == 'open to all' else 0o700)
  if planted == 'of another user':
    mine = os.getuid()
    monkeypatch.setattr('os.getuid', lambda: mine + 1)
    nobody.rename(tmp_path / f'blocklab-{mine + 1}')
  assert home.temporary_folder().name not in (nobody.name, f'blocklab-{os.getuid()}')


WINDOWS = """
import runpy, sys
sys.platform = sys.argv[1]
for name in ('fcntl', 'resource', 'termios', 'jax', 'absl', 'rich'):
  sys.modules[name] = None  # as there, or in no environment of ours
import os, signal
del os.EX_TEMPFAIL, os.getuid, signal.SIGHUP, signal.SIGKILL, signal.pthread_sigmask
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def started(command, **options):
  return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300, **options)


@pytest.mark.parametrize('command', COMMANDS)
@pytest.mark.parametrize('system', ['win32', 'cygwin'])
def test_another_system_is_refused_before_anything_is_imported_that_it_lacks(command, system):
  answer = started([sys.executable, '-c', WINDOWS, system, *command])
  name = Path(command[0]).name
  assert answer.returncode == 2
  assert answer.stderr == f'{name}: BlockLab runs on Linux and macOS; on Windows use WSL2\n'


STREAMS = """
import json, os, sys
from lab.cli.start_up import open_closed_streams
open_closed_streams()
null = os.stat(os.devnull)
kinds = [os.path.samestat(os.fstat(number), null) for number in range(3)]
print('to nowhere', end=''), print('to nowhere', file=sys.stderr, end=''), sys.stdin.read(), sys.stdout.isatty()
with open(sys.argv[1], 'x') as file:
  json.dump([kinds, file.fileno()], file)
"""


@pytest.mark.parametrize('closed', [(), (0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_no_other_file_gets_the_number_of_a_closed_stream(closed, tmp_path):
  shell = ' '.join(['exec "$@"', *(f'{number}{"<" if number == 0 else ">"}&-' for number in closed)])
  answer = started(['bash', '-c', shell, 'bash', sys.executable, '-c', STREAMS, str(tmp_path / 'out')], input='')
  assert answer.returncode == 0, answer.stderr
  kinds, number = json.loads((tmp_path / 'out').read_text())
  assert kinds == [number in closed for number in range(3)]
  assert number > 2


@pytest.mark.slow
@pytest.mark.parametrize('command', COMMANDS)
def test_commands_run_with_closed_streams(command):
  answer = started(['bash', '-c', 'exec "$@" <&- >&-', 'bash', sys.executable, *command])
  assert answer.returncode == (0 if '--list' in command else 2)
  assert 'Traceback' not in answer.stderr


SMALL = [
  '--name=x', '--config.data.task=copy', '--config.data.sequence_length=16', '--config.model.num_layers=1',
  '--config.model.d_model=16', '--config.model.num_heads=2', '--config.run.steps=4', '--config.run.batch_size=4',
  '--config.run.evaluations=1', '--config.optimizer.warmup_steps=1',
]  # fmt: skip
HOSTILE = {
  'JAX_ENABLE_X64': '1', 'JAX_DISABLE_JIT': '1', 'JAX_NUMPY_DTYPE_PROMOTION': 'strict', 'JAX_DEBUG_NANS': '1',
  'JAX_NUMPY_RANK_PROMOTION': 'raise', 'JAX_TRANSFER_GUARD': 'disallow', 'JAX_SCAN3': '1', 'JAX_NO_EXECUTION': '1',
  'NPROC': '7', 'OMP_NUM_THREADS': '1', 'PYTHONSAFEPATH': '1', 'PYTHONIOENCODING': 'ascii', 'PYTHONUNBUFFERED': '1',
  'TMPDIR': '/nowhere', 'HOME': '/proc/nowhere', 'TERM': 'dumb', 'COLUMNS': '20', 'PYTHONSTARTUP': '/nowhere',
}  # fmt: skip


@pytest.mark.slow
def test_a_hostile_environment_changes_no_number(tmp_path):
  """Nor do a site's banner, packages of the user's that are named as ours, and streams that are closed."""
  site = tmp_path / 'site'
  site.mkdir()
  (site / 'sitecustomize.py').write_text("print('welcome to this machine', end='')\n")
  for name in ('model', 'training', 'lab', 'experiments', 'configs'):
    (site / name).mkdir()
    (site / name / '__init__.py').write_text('raise RuntimeError\n')
  logs = []
  for name, more, shell in (('usual', {}, 'exec "$@"'), ('hostile', HOSTILE, 'exec "$@" <&- >&-')):
    place = tmp_path / name
    place.mkdir()
    environment = os.environ | more | ({'PYTHONPATH': str(site)} if more else {})
    command = ['bash', '-c', shell, 'bash', sys.executable, str(PROJECT / 'train.py'), *SMALL]
    answer = subprocess.run(command, cwd=place, env=environment, capture_output=True)
    assert answer.returncode == 0, answer.stderr
    logs.append((place / 'runs' / 'custom' / 'x' / 'seed_0' / 'metrics.jsonl').read_bytes())
  assert logs[0] == logs[1]
  assert answer.stderr.count(b' is ignored: ') == 8
  assert b'Traceback' not in answer.stderr
