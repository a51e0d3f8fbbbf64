"""What a command does first, before it imports JAX: it makes the environment one that all of BlockLab runs in.

A shell's variables, a container or a scheduler may have set what BlockLab cannot run with. What has one right value
here gets it, with a line that says so; what keeps JAX from starting is one line, and code 2. Standard library alone.
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
NONFINITE, TRANSFERS = 'a run that diverges is reported as such', 'batches and metrics are transferred at every step'
CACHE = 'a damaged compiled program is compiled anew'
# With these the same command would come to other numbers, or to none at all.
UNSET = {
  'JAX_ENABLE_X64': DTYPES,
  'JAX_EXPLICIT_X64_DTYPES': DTYPES,
  'JAX_NUMPY_DTYPE_PROMOTION': DTYPES,
  'JAX_NUMPY_RANK_PROMOTION': SHAPES,
  'JAX_DISABLE_JIT': 'training steps are compiled ahead of time',
  'JAX_NO_EXECUTION': 'nothing could be trained',
  'JAX_NO_TRACING': 'nothing could be compiled',
  'JAX_SCAN3': 'the gradient of the scan over layers fails with it',
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
HARMLESS = (
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
)  # values of those
PROBED = ('JAX_', 'XLA_', 'LIBTPU_', 'PJRT_', 'TF_XLA_')  # what JAX or XLA may refuse to start with begins with one
TRUSTED = (
  'JAX_COMPILATION_CACHE_DIR', 'JAX_COORDINATOR_ADDRESS', 'JAX_COORDINATOR_PORT', 'XLA_PYTHON_CLIENT_MEM_FRACTION',
  'XLA_PYTHON_CLIENT_PREALLOCATE', 'XLA_PYTHON_CLIENT_ALLOCATOR',
)  # fmt: skip


def prepare(command: str) -> None:
  """Makes this process ready to import the rest; leaves with one line and code 2 where that cannot be.

  Args:
    command: the name of the command, for its messages.
  """
  open_closed_streams()
  if sys.platform not in SYSTEMS:
    _leave(command, 'BlockLab runs on Linux and macOS; on Windows use WSL2')
  from lab.cli import signals  # of which Windows has not all

  signals.leave_at_once(command)
  for line in [*unset_harmful(os.environ), *keep_caches_somewhere(os.environ)]:
    print(f'{command}: {line}', file=sys.stderr)
  from training.host import cores

  os.environ['NPROC'] = str(len(cores()))  # threads of XLA's, which knows of no CPU quota


def check_jax(command: str, trains_here: bool = True) -> None:
  """Leaves with one line and code 2 where JAX or XLA refuses to start with what the environment says.

  Args:
    command: the name of the command, for its messages.
    trains_here: whether it needs the devices of this machine, and not of those that its jobs run on.
  """
  elsewhere = {name: value for name, value in os.environ.items() if name not in ('JAX_PLATFORMS', 'JAX_PLATFORM_NAME')}
  if problem := jax_problem(os.environ if trains_here else elsewhere):
    _leave(command, problem)


def prepare_worker() -> None:
  """As much of it as a worker needs, which a scheduler may have given another environment than the command had."""
  open_closed_streams()
  for line in unset_harmful(os.environ):
    print(line, file=sys.stderr)


def _leave(command: str, problem: str) -> None:
  print(f'{command}: {problem}', file=sys.stderr)
  raise SystemExit(2)


def open_closed_streams() -> None:
  """Opens what was closed of stdin, stdout and stderr, as by `>&-`, on nothing: else some file would get its number."""
  for number, name, mode in ((0, 'stdin', 'r'), (1, 'stdout', 'w'), (2, 'stderr', 'w')):
    try:
      os.fstat(number)
    except OSError:
      descriptor = os.open(os.devnull, os.O_RDWR)
      if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
    if getattr(sys, name) is None:
      setattr(sys, name, open(os.devnull, mode, encoding='utf8'))  # noqa: SIM115 - as long as the process


def unset_harmful(environment: MutableMapping[str, str]) -> list[str]:
  """Unsets what BlockLab runs without, and returns a line for each that would have changed something."""
  lines = []
  for name, why in UNSET.items():
    value = environment.pop(name, '').strip()
    if value.lower() not in HARMLESS:
      lines.append(f'{name}={value} is ignored: {why}')
  gpus = environment.pop('JAX_CUDA_VISIBLE_DEVICES', 'all')
  if gpus != 'all':  # each worker is given its own by the other name, and would then count from there
    environment.setdefault('CUDA_VISIBLE_DEVICES', gpus)
  return lines


def keep_caches_somewhere(environment: MutableMapping[str, str]) -> list[str]:
  """Has caches kept in a temporary folder where the user has no home that can be written; a line says where."""
  from training.home import home, make_folder, temporary_folder  # it asks for the user, who has no number on Windows

  own = home()
  cache, settings = (
    _below(environment.get(f'XDG_{name}_HOME'), own, f'.{name.lower()}') for name in ('CACHE', 'CONFIG')
  )
  if sys.platform == 'darwin':
    cache = settings = own
  lost = {'BLOCKLAB_CACHE': not make_folder(cache), 'MPLCONFIGDIR': not (make_folder(cache) and make_folder(settings))}
  names = [name for name, is_lost in lost.items() if is_lost and not environment.get(name)]
  if not names:
    return []
  temporary = temporary_folder()
  for name in names:
    environment[name] = str(temporary / name.lower())
    os.makedirs(environment[name], exist_ok=True)
  unusable = next((folder for folder in (cache, settings) if folder and not make_folder(folder)), None)
  if unusable is None:
    what = 'there is no home folder'
  elif unusable.is_absolute():
    what = f'{own if unusable.parent == own else unusable} cannot be written'
  else:
    what = f'XDG_CACHE_HOME and XDG_CONFIG_HOME must be absolute paths, and {unusable} is none'
  return [f'{what}: what is kept between runs is in {temporary}; BLOCKLAB_CACHE may name another folder']


def _below(named: str | None, own: Path | None, name: str) -> Path | None:
  return Path(named) if named else own and own / name


def jax_problem(environment: Mapping[str, str]) -> str | None:
  """What keeps JAX from starting, in a line; asked of a process of its own, since XLA ends one that it refuses.

  Where nothing is set that JAX or XLA reads, nobody is asked, which takes a second.
  """
  suspects = [f'{name}={value}' for name, value in sorted(environment.items()) if _is_suspect(name, value)]
  if not suspects:
    return None
  try:
    answer = subprocess.run(
      [sys.executable, '-P', '-c', PROBE], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True,
      text=True, errors='replace', timeout=300,
    )  # fmt: skip
  except subprocess.TimeoutExpired:
    return f'JAX does not start within 300 s with {" ".join(suspects)}'
  if not answer.returncode:
    return None
  return f'JAX does not start with {" ".join(suspects)}: {reason(answer)}'


def _is_suspect(name: str, value: str) -> bool:
  if name == 'JAX_PLATFORMS':
    return value.strip() not in ('', 'cpu')
  return bool(value) and name.startswith(PROBED) and name not in TRUSTED


def reason(ended: subprocess.CompletedProcess[str]) -> str:
  """Why a process of JAX's ended: what XLA said of a flag, or the last line, which names a Python error."""
  lines = [line.strip() for line in ended.stderr.splitlines() if line.strip() and not line.startswith('---')]
  fatal = [line.partition('] ')[2] for line in lines if line.startswith('F') and '] ' in line]
  errors = [line for line in lines if line.partition(':')[0].rpartition('.')[2].endswith(('Error', 'Exception'))]
  said = (fatal or errors or lines or [f'its process ended with code {ended.returncode}'])[-1]
  if said == 'AssertionError':  # all that it says of a platform without a plugin
    return 'there is no such device here, or its plugin is not installed'
  return said
