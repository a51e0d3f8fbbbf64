"""The environment of a command: its variables, a missing home directory, closed streams, and other systems."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.cli import startup
from training import home
from training.cache import cache_directory

PROJECT = Path(startup.__file__).parents[2]
INSPECT = '--config.model.num_layers=1', '--config.data.task=copy', '--step=all'
COMMANDS = [
  [str(PROJECT / 'train.py'), '--list'],
  [str(PROJECT / 'reproduce.py'), '--only=nothing'],
  [str(PROJECT / 'inspect_gradients.py'), *INSPECT],
]


@pytest.mark.parametrize(
  ('name', 'value', 'warning'),
  [
    ('JAX_ENABLE_X64', '1', 'JAX_ENABLE_X64=1 is ignored: the config sets the dtypes'),
    ('JAX_ENABLE_X64', 'garbage', 'JAX_ENABLE_X64=garbage is ignored: the config sets the dtypes'),
    ('JAX_NUMPY_DTYPE_PROMOTION', 'strict', 'JAX_NUMPY_DTYPE_PROMOTION=strict is ignored: the config sets the dtypes'),
    ('JAX_DEBUG_NANS', 'True', 'JAX_DEBUG_NANS=True is ignored: a diverging run is detected and reported'),
    ('JAX_ENABLE_X64', 'False', None),
    ('JAX_DISABLE_JIT', '', None),
    ('JAX_TRANSFER_GUARD', 'log', None),
    ('JAX_CPU_COLLECTIVES_IMPLEMENTATION', 'gloo', None),
    ('JAX_NUMPY_DTYPE_PROMOTION', 'Standard', None),
  ],
)
def test_incompatible_variables_are_unset(name, value, warning):
  environment = {name: value, 'JAX_DEFAULT_PRNG_IMPL': 'rbg'}  # changes the results, but is a valid choice
  assert startup.unset_incompatible_variables(environment) == ([warning] if warning else [])
  assert environment == {'JAX_DEFAULT_PRNG_IMPL': 'rbg'}


def test_xla_has_as_many_threads_as_usable_cores(monkeypatch):
  """Even if a build system has set the variable, and also in commands that do not train."""
  monkeypatch.setattr('training.host.cores', lambda: [3, 5])
  monkeypatch.setattr('os.environ', {'NPROC': '64', 'BLOCKLAB_CACHE': '/x', 'MPLCONFIGDIR': '/y', 'HOME': '/z'})
  startup.prepare('train.py')
  assert os.environ['NPROC'] == '2'


def test_the_gpus_that_jax_may_use_are_set_for_cuda():
  environment = {'JAX_CUDA_VISIBLE_DEVICES': '2,3'}
  assert startup.unset_incompatible_variables(environment) == []
  assert environment == {'CUDA_VISIBLE_DEVICES': '2,3'}
  assert startup.unset_incompatible_variables(environment | {'JAX_CUDA_VISIBLE_DEVICES': 'all'}) == []


@pytest.mark.parametrize(
  ('name', 'value', 'reason'),
  [
    ('XLA_FLAGS', '--xla_no_such_flag=1', 'Unknown flag in XLA_FLAGS: --xla_no_such_flag=1'),
    ('JAX_DEFAULT_MATMUL_PRECISION', 'garbage', 'Invalid value "garbage" for JAX flag jax_default_matmul_precision'),
    ('JAX_PLATFORMS', 'cuda', 'this machine has no such device, or its JAX plugin is not installed'),
  ],
)
def test_a_variable_with_which_jax_does_not_start_is_reported_in_one_line(name, value, reason, monkeypatch):
  for other in os.environ:
    if other.startswith(startup.PREFIXES):
      monkeypatch.delenv(other)
  monkeypatch.setenv(name, value)
  error = startup.jax_startup_error(os.environ)
  assert error.startswith(f'JAX does not start with {name}={value}: ')
  assert reason in error
  assert '\n' not in error


def test_a_login_node_without_a_gpu_can_submit_jobs_with_gpus(monkeypatch):
  checked = []
  monkeypatch.setenv('JAX_PLATFORMS', 'cuda')
  monkeypatch.setattr(startup, 'jax_startup_error', lambda environment: checked.append('JAX_PLATFORMS' in environment))
  startup.check_jax('train.py')
  startup.check_jax('train.py', trains_here=False)
  assert checked == [True, False]


def test_without_such_variables_jax_is_not_started(monkeypatch):
  monkeypatch.setattr('subprocess.run', None)  # a call would fail
  usual = {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '', 'JAX_COMPILATION_CACHE_DIR': '/x', 'PATH': '/bin'}
  assert startup.jax_startup_error(usual) is None


@pytest.fixture
def fallback(tmp_path, monkeypatch):
  """The temporary directory of a user without an account, as in `docker run --user 12345`."""
  for name in ('HOME', 'XDG_CACHE_HOME', 'XDG_CONFIG_HOME', 'BLOCKLAB_CACHE', 'MPLCONFIGDIR'):
    monkeypatch.delenv(name, raising=False)

  def unknown(number):
    raise KeyError(f'getpwuid(): uid not found: {number}')

  monkeypatch.setattr('pwd.getpwuid', unknown)
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  return tmp_path / f'blocklab-{os.getuid()}'


def test_without_a_home_directory_caches_are_in_a_temporary_directory(fallback):
  environment: dict[str, str] = {}
  (line,) = startup.redirect_caches(environment)
  assert line.startswith(f'there is no home directory: files are cached in {fallback};')
  assert environment == {'BLOCKLAB_CACHE': f'{fallback}/blocklab_cache', 'MPLCONFIGDIR': f'{fallback}/mplconfigdir'}
  assert all(Path(folder).is_dir() for folder in environment.values())
  assert fallback.stat().st_mode & 0o777 == 0o700
  assert startup.redirect_caches(environment) == []  # in a worker, which inherits it
  assert cache_directory() == fallback  # for a program that only imports training


@pytest.mark.parametrize('system', ['linux', 'darwin'])
def test_an_unwritable_home_directory_is_reported(system, fallback, monkeypatch):
  monkeypatch.setattr('sys.platform', system)
  monkeypatch.setenv('HOME', '/proc/nowhere')
  (line,) = startup.redirect_caches({})
  assert line.startswith('/proc/nowhere is not writable: files are cached in ')
  chosen = {'XDG_CACHE_HOME': str(fallback.parent), 'XDG_CONFIG_HOME': str(fallback.parent)}
  if system == 'linux':
    assert startup.redirect_caches(chosen) == []
    (line,) = startup.redirect_caches(chosen | {'XDG_CACHE_HOME': 'here'})
    assert line.startswith('XDG_CACHE_HOME and XDG_CONFIG_HOME must be absolute paths, and here is not: files')
    (line,) = startup.redirect_caches(chosen | {'XDG_CONFIG_HOME': '/proc/else'})
    assert line.startswith('/proc/else is not writable: files are cached in ')
  assert startup.redirect_caches({'BLOCKLAB_CACHE': '/x', 'MPLCONFIGDIR': '/y'}) == []


@pytest.mark.parametrize('planted', ['owned by another user', 'writable by all', 'a symlink'])
def test_an_untrusted_temporary_directory_is_not_used(planted, fallback, monkeypatch, tmp_path):
  """Otherwise another user could plant compiled programs."""
  if planted == 'a symlink':
    (tmp_path / 'other').mkdir()
    fallback.symlink_to(tmp_path / 'other')
  else:
    fallback.mkdir()
    fallback.chmod(0o777 if planted == 'writable by all' else 0o700)
  if planted == 'owned by another user':
    mine = os.getuid()
    monkeypatch.setattr('os.getuid', lambda: mine + 1)
    fallback.rename(tmp_path / f'blocklab-{mine + 1}')
  assert home.temporary_folder().name not in (fallback.name, f'blocklab-{os.getuid()}')


WINDOWS = """
import runpy, sys
sys.platform = sys.argv[1]
for name in ('fcntl', 'resource', 'termios', 'jax', 'absl', 'rich'):
  sys.modules[name] = None  # as on Windows, or where they are not installed
import os, signal
del os.EX_TEMPFAIL, os.getuid, signal.SIGHUP, signal.SIGKILL, signal.pthread_sigmask
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def started(command, **options):
  return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300, **options)


@pytest.mark.parametrize('command', COMMANDS)
@pytest.mark.parametrize('system', ['win32', 'cygwin'])
def test_windows_is_refused_before_the_imports_that_would_fail_there(command, system):
  answer = started([sys.executable, '-c', WINDOWS, system, *command])
  name = Path(command[0]).name
  assert answer.returncode == 2
  assert answer.stderr == f'{name}: BlockLab runs on Linux and macOS; on Windows use WSL2\n'


STREAMS = """
import json, os, sys
from lab.cli.startup import reopen_closed_streams
reopen_closed_streams()
null = os.stat(os.devnull)
kinds = [os.path.samestat(os.fstat(number), null) for number in range(3)]
print('to nowhere', end=''), print('to nowhere', file=sys.stderr, end=''), sys.stdin.read(), sys.stdout.isatty()
with open(sys.argv[1], 'x') as file:
  json.dump([kinds, file.fileno()], file)
"""


@pytest.mark.parametrize('closed', [(), (0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_no_file_gets_the_descriptor_of_a_closed_stream(closed, tmp_path):
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
def test_a_hostile_environment_does_not_change_the_metrics(tmp_path):
  """Including a banner from sitecustomize, packages with the names of ours in PYTHONPATH, and closed streams."""
  site = tmp_path / 'site'
  site.mkdir()
  (site / 'sitecustomize.py').write_text("print('welcome to this machine', end='')\n")
  for name in ('model', 'training', 'lab', 'experiments', 'configs'):
    (site / name).mkdir()
    (site / name / '__init__.py').write_text('raise RuntimeError\n')
  logs = []
  for name, more, shell in (('usual', {}, 'exec "$@"'), ('hostile', HOSTILE, 'exec "$@" <&- >&-')):
    directory = tmp_path / name
    directory.mkdir()
    environment = os.environ | more | ({'PYTHONPATH': str(site)} if more else {})
    command = ['bash', '-c', shell, 'bash', sys.executable, str(PROJECT / 'train.py'), *SMALL]
    answer = subprocess.run(command, cwd=directory, env=environment, capture_output=True)
    assert answer.returncode == 0, answer.stderr
    logs.append((directory / 'runs' / 'custom' / 'x' / 'seed_0' / 'metrics.jsonl').read_bytes())
  assert logs[0] == logs[1]
  assert answer.stderr.count(b' is ignored: ') == 8
  assert b'Traceback' not in answer.stderr
