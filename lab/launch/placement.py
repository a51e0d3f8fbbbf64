"""Where the workers of a command go while others train on the machine, and the line that says what they train on."""

import contextlib
import glob
import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.launch import device_locks, devices
from lab.launch.devices import Place
from lab.launch.processes import ALONE, Processes
from training.host import cores
from training.provenance import processor

VARIABLES = {'gpu': 'CUDA_VISIBLE_DEVICES', 'chip': 'TPU_VISIBLE_CHIPS'}
NO_GPU = ('', '-1', 'none', 'void', 'NoDevFiles')  # of CUDA_VISIBLE_DEVICES: somebody has decided that there be none


@contextlib.contextmanager
def settled(places: Sequence[Place], processes: Processes = ALONE) -> Iterator[tuple[list[Place], bool]]:
  """Moves workers to the cores, GPUs or chips that other commands on this machine leave, and keeps these for them.

  A worker that has all cores stays as it is, and so do several processes that train one run together.

  Args:
    places: of the workers, as worker_places gives them.
    processes: that train one run together.

  Yields:
    The places to start them at, and whether some of them had to be shared with another command.
  """
  kind = 'core' if places[0].core is not None else next((k for k, v in VARIABLES.items() if v in _named(places)), '')
  if not kind or processes is not ALONE:
    yield list(places), False
    return
  if kind == 'core':
    names, counts = [str(core) for core in cores()], [1] * len(places)
  else:
    counts = [len(place.environment[VARIABLES[kind]].split(',')) for place in places]
    names = devices.visible(VARIABLES[kind], devices.ask_jax().count)
  with device_locks.taken(kind, names, counts) as found:
    own = device_locks.own_level(sum(counts), len(names))
    moved = [
      _moved(place, kind, taken.names, shared=taken.level > own) for place, taken in zip(places, found, strict=True)
    ]
    yield moved, any(taken.level > own for taken in found)


def _named(places: Sequence[Place]) -> set[str]:
  return {name for place in places for name in place.environment}


def _moved(place: Place, kind: str, names: Sequence[str], shared: bool) -> Place:
  if kind == 'core':
    return place._replace(core=int(names[0]))
  environment = place.environment | {VARIABLES[kind]: ','.join(names)}
  if kind == 'gpu' and shared:  # the other command has reserved most of its memory
    environment['XLA_PYTHON_CLIENT_PREALLOCATE'] = os.environ.get('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  return place._replace(environment=environment)


def described(places: Sequence[Place], shared: bool = False, processes: Processes = ALONE) -> list[str]:
  """What the workers train on, in a line; and in another, where there is a GPU that they do not train on, how to."""
  found = devices.ask_jax()
  if found.platform == 'cpu':
    own = len(cores()) if places[0].core is None else len({place.core for place in places})
    what = f'{_count(own, "CPU core")} ({processor()})'
    what += f', as {places[0].devices} devices' if places[0].devices > 1 else ''
  else:
    variable = VARIABLES['gpu' if found.platform == 'gpu' else 'chip']
    used = {name for place in places for name in place.environment.get(variable, '').split(',') if name}
    what = f'{_count(len(used) or found.count, found.platform.upper())} ({found.kind})'
  what += f', process {processes.index} of {processes.count}' if processes.count > 1 else ''
  what += f', {_count(len(places), "run")} at a time' if len(places) > 1 else ''
  what += ', shared with another command' if shared else ''
  return [f'training on {what}', *(_unused(found) if found.platform == 'cpu' else [])]


def _count(number: int, what: str) -> str:
  return f'{number} {what}{"" if number == 1 else "s"}'


def _unused(found: devices.Answer) -> list[str]:
  """A line on a GPU or TPU that is here and that JAX does not use, unless somebody has decided so."""
  if os.environ.get('JAX_PLATFORMS', '').strip() or os.environ.get('CUDA_VISIBLE_DEVICES', 'all') in NO_GPU:
    return []
  what, extra = accelerator_here()
  if not what:
    return []
  version = importlib.metadata.version('jax')
  if devices.has_plugin():
    why = f': {found.said.splitlines()[-1]}' if found.said else ''
    return [f"{what} is here and not used, since JAX's plugin for it does not start{why}"]
  return [f"{what} is here and not used: for training on it, pip install 'jax[{extra}]=={version}'"]


def accelerator_here(devices: Path = Path('/dev')) -> tuple[str, str]:
  """What accelerator this machine has, going by its drivers, and the extra of JAX's package for it; or ('', '').

  Args:
    devices: where the files of devices are.
  """
  if nvidia_smi := shutil.which('nvidia-smi'):  # which is also on machines without a GPU
    try:
      answer = subprocess.run([nvidia_smi, '-L'], capture_output=True, text=True, errors='replace', timeout=10)
    except (OSError, subprocess.TimeoutExpired):
      answer = None
    names = re.findall(r'^GPU \d+: (.*?)(?: \(UUID.*)?$', answer.stdout, re.MULTILINE) if answer else []
    if names:
      return f'a GPU ({names[0]})', 'cuda13'
  if glob.glob(str(devices / 'nvidia[0-9]*')):
    return 'an NVIDIA GPU', 'cuda13'
  if (devices / 'kfd').exists():
    return 'an AMD GPU', 'rocm7-local'
  if glob.glob(str(devices / 'accel[0-9]*')):
    return 'a TPU', 'tpu'
  return '', ''
