"""Describes the devices on which workers train, and any accelerator of this machine that JAX does not use."""

import glob
import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.launch import devices
from lab.launch.devices import DetectedDevices, WorkerSlot
from lab.launch.process_group import SINGLE_PROCESS, ProcessGroup
from training.host import cores, processor

HIDES_GPUS = ('', '-1', 'none', 'void', 'NoDevFiles')  # values of CUDA_VISIBLE_DEVICES that exclude every GPU


def describe_devices(
  slots: Sequence[WorkerSlot], shared: bool = False, group: ProcessGroup = SINGLE_PROCESS
) -> list[str]:
  """A line that names the devices of the workers, and a second line about any accelerator that JAX does not use.

  Args:
    slots: the slots of the workers.
    shared: whether any of their devices is shared with another command.
    group: the processes that train one run together.
  """
  detected = devices.detect_devices()
  if detected.platform == 'cpu':
    used = len(cores()) if slots[0].core is None else len({slot.core for slot in slots})
    text = f'{_count(used, "CPU core")} ({processor()})'
    text += f', as {slots[0].devices} devices' if slots[0].devices > 1 else ''
  else:
    variable = devices.VARIABLES['gpu' if detected.platform == 'gpu' else 'chip']
    names = {name for slot in slots for name in slot.environment.get(variable, '').split(',') if name}
    text = f'{_count(len(names) or detected.count, detected.platform.upper())} ({detected.kind})'
  text += f', process {group.index} of {group.count}' if group.count > 1 else ''
  text += f', {_count(len(slots), "run")} at a time' if len(slots) > 1 else ''
  text += ', shared with another command' if shared else ''
  return [f'training on {text}', *(_unused_accelerator(detected) if detected.platform == 'cpu' else [])]


def _count(number: int, noun: str) -> str:
  return f'{number} {noun}{"" if number == 1 else "s"}'


def _unused_accelerator(detected: DetectedDevices) -> list[str]:
  """A line about a GPU or TPU of this machine that JAX does not use, unless the user has excluded it."""
  if os.environ.get('JAX_PLATFORMS', '').strip() or os.environ.get('CUDA_VISIBLE_DEVICES', 'all') in HIDES_GPUS:
    return []
  accelerator, extra = find_accelerator()
  if not accelerator:
    return []
  if devices.has_accelerator_plugin():
    why = f': {detected.messages.splitlines()[-1]}' if detected.messages else ''
    return [f"{accelerator} was found but is not used, because JAX's plugin for it does not start{why}"]
  version = importlib.metadata.version('jax')
  return [f"{accelerator} was found but is not used; to train on it: pip install 'jax[{extra}]=={version}'"]


def find_accelerator(device_files: Path = Path('/dev')) -> tuple[str, str]:
  """The accelerator of this machine, according to its drivers, and the pip extra of jax for it; ('', '') if none.

  Args:
    device_files: the folder that contains the device files.
  """
  if nvidia_smi := shutil.which('nvidia-smi'):  # it may be installed without a GPU
    try:
      ended = subprocess.run([nvidia_smi, '-L'], capture_output=True, text=True, errors='replace', timeout=10)
    except (OSError, subprocess.TimeoutExpired):
      ended = None
    names = re.findall(r'^GPU \d+: (.*?)(?: \(UUID.*)?$', ended.stdout, re.MULTILINE) if ended else []
    if names:
      return f'a GPU ({names[0]})', 'cuda13'
  if glob.glob(str(device_files / 'nvidia[0-9]*')):
    return 'an NVIDIA GPU', 'cuda13'
  if (device_files / 'kfd').exists():
    return 'an AMD GPU', 'rocm7-local'
  if glob.glob(str(device_files / 'accel[0-9]*')):
    return 'a TPU', 'tpu'
  return '', ''
