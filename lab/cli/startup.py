"""Checks and corrects the environment of a command before it imports JAX.

A shell, a container or a scheduler may set variables that BlockLab cannot run with. Variables with only one
valid value are unset, with a warning. If JAX does not start, the command reports the variables and the reason in one
line, and exits with code 2. This module
imports only the standard library.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

SYSTEMS = ('linux', 'darwin')
PROBE = """
import jax
jax.jit(lambda x: x + 1)(jax.numpy.float32(1)).block_until_ready()
"""
DTYPES, SHAPES = 'the config sets the dtypes', 'arrays of different rank are broadcast'
NONFINITE, TRANSFERS = 'a diverging run is detected and reported', 'batches and metrics are transferred at every step'
CACHE = 'a damaged compiled program is recompiled'
# Variables that would change the results or make a command fail -> why they are ignored.
INCOMPATIBLE = {
  'JAX_ENABLE_X64': DTYPES,
  'JAX_EXPLICIT_X64_DTYPES': DTYPES,
  'JAX_NUMPY_DTYPE_PROMOTION': DTYPES,
  'JAX_NUMPY_RANK_PROMOTION': SHAPES,
  'JAX_DISABLE_JIT': 'training steps are compiled ahead of time',
  'JAX_NO_EXECUTION': 'training executes programs',
  'JAX_NO_TRACING': 'training steps must be traced to be compiled',
  'JAX_SCAN3': 'the gradient of the scan over layers would fail',
  'JAX_DEBUG_NANS': NONFINITE,
  'JAX_DEBUG_INFS': NONFINITE,
  'JAX_ERROR_CHECKING_BEHAVIOR_NAN': NONFINITE,
  'JAX_ERROR_CHECKING_BEHAVIOR_DIVIDE': NONFINITE,
  'JAX_ERROR_CHECKING_BEHAVIOR_OOB': 'token ids are checked when the text is read',
  'JAX_COMPILATION_CACHE_CHECK_CONTENTS': CACHE,
  'JAX_RAISE_PERSISTENT_CACHE_ERRORS': CACHE,
  'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'processes on CPUs communicate through gloo',
  'JAX_TRANSFER_GUARD': TRANSFERS,
  'JAX_TRANSFER_GUARD_HOST_TO_DEVICE': TRANSFERS,
  'JAX_TRANSFER_GUARD_DEVICE_TO_HOST': TRANSFERS,
  'JAX_TRANSFER_GUARD_DEVICE_TO_DEVICE': TRANSFERS,
}
HARMLESS = (  # values of the variables above that change nothing
  '',
  'gloo',
  '0',
  'false',
  'off',
  'no',
  'n',
  'f',
  'standard',
  'allow',
  'ignore',
  'log',
  'warn',
)
PREFIXES = ('JAX_', 'XLA_', 'LIBTPU_', 'PJRT_', 'TF_XLA_')  # of variables with which JAX or XLA may not start
ALLOWED = (
  'JAX_COMPILATION_CACHE_DIR', 'JAX_COORDINATOR_ADDRESS', 'JAX_COORDINATOR_PORT', 'XLA_PYTHON_CLIENT_MEM_FRACTION',
  'XLA_PYTHON_CLIENT_PREALLOCATE', 'XLA_PYTHON_CLIENT_ALLOCATOR',
)  # fmt: skip


def prepare(command: str) -> None:
  """Prepares this process for the imports of a command.

  Args:
    command: the name of the command, for messages.

  Raises:
    SystemExit: with code 2, after one line, on an unsupported operating system.
  """
  reopen_closed_streams()
  if sys.platform not in SYSTEMS:
    _exit(command, 'BlockLab runs on Linux and macOS; on Windows use WSL2')
  from lab.cli import signals  # imported only now because Windows lacks some of the signals

  signals.exit_immediately_on_signals(command)
  for line in [*unset_incompatible_variables(os.environ), *redirect_caches(os.environ)]:
    print(f'{command}: {line}', file=sys.stderr)
  from training.host import cores

  os.environ['NPROC'] = str(len(cores()))  # XLA's number of threads, which by itself would not respect a CPU quota


def check_jax(command: str, trains_here: bool = True) -> None:
  """Checks that JAX starts with the environment variables of this process.

  Args:
    command: the name of the command, for messages.
    trains_here: whether the command trains on this machine, rather than in jobs on other machines. If not, the
      requested platform need not be available here.

  Raises:
    SystemExit: with code 2, after one line, if JAX or XLA does not start.
  """
  without_platform = {
    name: value for name, value in os.environ.items() if name not in ('JAX_PLATFORMS', 'JAX_PLATFORM_NAME')
  }
  if problem := jax_startup_error(os.environ if trains_here else without_platform):
    _exit(command, problem)


def prepare_worker() -> None:
  """Prepares a worker process, whose environment a scheduler may have changed."""
  reopen_closed_streams()
  for line in unset_incompatible_variables(os.environ):
    print(line, file=sys.stderr)


def _exit(command: str, problem: str) -> None:
  print(f'{command}: {problem}', file=sys.stderr)
  raise SystemExit(2)


def reopen_closed_streams() -> None:
  """Opens /dev/null in place of a closed stdin, stdout or stderr (as by `>&-`), so that no file gets its descriptor."""
  for number, name, mode in ((0, 'stdin', 'r'), (1, 'stdout', 'w'), (2, 'stderr', 'w')):
    try:
      os.fstat(number)
    except OSError:
      descriptor = os.open(os.devnull, os.O_RDWR)
      if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
    if getattr(sys, name) is None:
      setattr(sys, name, open(os.devnull, mode, encoding='utf8'))  # noqa: SIM115 - open until the process exits


def unset_incompatible_variables(environment: MutableMapping[str, str]) -> list[str]:
  """Unsets the variables in INCOMPATIBLE, and returns a warning for each that would have had an effect."""
  lines = []
  for name, reason in INCOMPATIBLE.items():
    value = environment.pop(name, '').strip()
    if value.lower() not in HARMLESS:
      lines.append(f'{name}={value} is ignored: {reason}')
  gpus = environment.pop('JAX_CUDA_VISIBLE_DEVICES', 'all')
  if gpus != 'all':  # workers are assigned GPUs by CUDA_VISIBLE_DEVICES, and JAX would count from the first of those
    environment.setdefault('CUDA_VISIBLE_DEVICES', gpus)
  return lines


def redirect_caches(environment: MutableMapping[str, str]) -> list[str]:
  """Moves caches to a temporary directory if there is no writable home directory, and returns a warning."""
  from training.home import home, make_folder, temporary_folder  # which use os.getuid, missing on Windows

  home_folder = home()
  cache, settings = (
    _cache_folder(environment.get(f'XDG_{name}_HOME'), home_folder, f'.{name.lower()}') for name in ('CACHE', 'CONFIG')
  )
  if sys.platform == 'darwin':
    cache = settings = home_folder
  unwritable = {
    'BLOCKLAB_CACHE': not make_folder(cache),
    'MPLCONFIGDIR': not (make_folder(cache) and make_folder(settings)),
  }
  names = [name for name, redirect in unwritable.items() if redirect and not environment.get(name)]
  if not names:
    return []
  temporary = temporary_folder()
  for name in names:
    environment[name] = str(temporary / name.lower())
    os.makedirs(environment[name], exist_ok=True)
  unusable = next((folder for folder in (cache, settings) if folder and not make_folder(folder)), None)
  if unusable is None:
    reason = 'there is no home directory'
  elif unusable.is_absolute():
    reason = f'{home_folder if unusable.parent == home_folder else unusable} is not writable'
  else:
    reason = f'XDG_CACHE_HOME and XDG_CONFIG_HOME must be absolute paths, and {unusable} is not'
  return [f'{reason}: files are cached in {temporary}; set BLOCKLAB_CACHE to use another directory']


def _cache_folder(configured: str | None, home_folder: Path | None, name: str) -> Path | None:
  return Path(configured) if configured else home_folder and home_folder / name


def jax_startup_error(environment: Mapping[str, str]) -> str | None:
  """Returns why JAX does not start with these environment variables, in one line, or None if it does.

  JAX is started in another process, because XLA aborts the process if a flag is invalid. This takes a second, and is
  skipped if no variable that JAX or XLA reads is set.
  """
  suspects = [f'{name}={value}' for name, value in sorted(environment.items()) if _is_suspect(name, value)]
  if not suspects:
    return None
  try:
    probe = subprocess.run(
      [sys.executable, '-P', '-c', PROBE], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True,
      text=True, errors='replace', timeout=300,
    )  # fmt: skip
  except subprocess.TimeoutExpired:
    return f'JAX does not start within 300 s with {" ".join(suspects)}'
  if not probe.returncode:
    return None
  return f'JAX does not start with {" ".join(suspects)}: {failure_reason(probe)}'


def _is_suspect(name: str, value: str) -> bool:
  if name == 'JAX_PLATFORMS':
    return value.strip() not in ('', 'cpu')
  return bool(value) and name.startswith(PREFIXES) and name not in ALLOWED


def failure_reason(process: subprocess.CompletedProcess[str]) -> str:
  """Returns why a process that started JAX failed: XLA's message about a flag, otherwise the last error in stderr."""
  lines = [line.strip() for line in process.stderr.splitlines() if line.strip() and not line.startswith('---')]
  fatal = [line.partition('] ')[2] for line in lines if line.startswith('F') and '] ' in line]
  errors = [line for line in lines if line.partition(':')[0].rpartition('.')[2].endswith(('Error', 'Exception'))]
  message = (fatal or errors or lines or [f'its process exited with code {process.returncode}'])[-1]
  if message == 'AssertionError':  # all that JAX reports for a platform without a plugin
    return 'this machine has no such device, or its JAX plugin is not installed'
  return message
