"""Moves workers to the cores, GPUs and chips that no other command on this machine is using."""

import contextlib
import os
from collections.abc import Iterator, Sequence

from lab.launch import device_locks, devices
from lab.launch.devices import WorkerSlot
from lab.launch.process_group import SINGLE_PROCESS, ProcessGroup
from training.host import cores


@contextlib.contextmanager
def place_workers(
  slots: Sequence[WorkerSlot], group: ProcessGroup = SINGLE_PROCESS
) -> Iterator[tuple[list[WorkerSlot], bool]]:
  """Moves workers to devices that no other command is using, and reserves these while the context is open.

  A worker that may use all cores keeps its slot, and so do the processes of a group.

  Args:
    slots: the slots of the workers, from `worker_slots`.
    group: the processes that train one run together.

  Yields:
    The slots in which to start the workers, and whether any of them is shared with another command.
  """
  kind = _device_kind(slots)
  if not kind or group is not SINGLE_PROCESS:
    yield list(slots), False
    return
  if kind == 'core':
    names, counts = [str(core) for core in cores()], [1] * len(slots)
  else:
    counts = [len(slot.environment[devices.VARIABLES[kind]].split(',')) for slot in slots]
    names = devices.visible_devices(devices.VARIABLES[kind], devices.detect_devices().count)
  with device_locks.reserve(kind, names, counts) as reservations:
    own_level = device_locks.level_without_others(sum(counts), len(names))
    moved = [
      _move(slot, kind, reservation.names, shared=reservation.level > own_level)
      for slot, reservation in zip(slots, reservations, strict=True)
    ]
    yield moved, any(reservation.level > own_level for reservation in reservations)


def _device_kind(slots: Sequence[WorkerSlot]) -> str:
  """The kind of device that the slots specify: `core`, `gpu` or `chip`; empty if none."""
  if slots[0].core is not None:
    return 'core'
  named = {name for slot in slots for name in slot.environment}
  return next((kind for kind, variable in devices.VARIABLES.items() if variable in named), '')


def _move(slot: WorkerSlot, kind: str, names: Sequence[str], shared: bool) -> WorkerSlot:
  if kind == 'core':
    return slot._replace(core=int(names[0]))
  environment = slot.environment | {devices.VARIABLES[kind]: ','.join(names)}
  if kind == 'gpu' and shared:  # the other command has reserved most of its memory
    environment['XLA_PYTHON_CLIENT_PREALLOCATE'] = os.environ.get('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  return slot._replace(environment=environment)
