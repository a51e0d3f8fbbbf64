"""Checkpoints of the training state. The only module that imports Orbax."""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl import logging
from orbax.checkpoint import v1 as ocp
from orbax.checkpoint._src.serialization import tensorstore_utils

from training.config import ConfigError
from training.digests import Damaged, array_checksums, read_manifest, write_manifest
from training.files import SaveFailed
from training.state import State

# Folders are created before a save continues in the background: otherwise, if one cannot be created, Orbax's threads
# wait for it for 20 minutes, and the process cannot exit.
_CONTEXT = ocp.Context()
_CONTEXT.asynchronous.create_directories_asynchronously = False
# The lock of the run protects its checkpoints; TensorStore's own locks would need a file system with locks.
for _defaults in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
  _defaults['file_io_locking'] = {'mode': 'none'}
ANNOUNCE_AFTER = 30.0  # seconds of waiting for a save
SAVE_WITHIN = 3600.0  # seconds until a save counts as failed: Orbax's threads may hang
WRITERS_WITHIN = 60.0  # seconds to wait for the other threads of a failed save
_UNFINISHED = '.saving'  # suffix of a folder until everything, including its manifest, is written

About = Mapping[str, Any]  # the JSON that a run stores with a checkpoint; see training/resume.py


class Restored(NamedTuple):
  """A state, the JSON stored with it, and a note for each newer checkpoint that was damaged."""

  state: State
  about: About
  notes: list[str]


class Checkpoints:
  """The checkpoints of one run, by step. A context manager: its exit waits for the last save, and raises its error.

  A folder is renamed to its step when everything is written: one with such a name is complete, though it may have been
  damaged since. Its manifest holds the sha256 of every file, the checksum of every array, and JSON from the run. If
  several processes train the run, each writes and reads its part of the arrays; the first one does everything else.
  """

  def __init__(self, directory: Path, keep: int, check: Callable[[], None] = lambda: None):
    """Creates the directory if necessary, and deletes unfinished checkpoints in it.

    Args:
      directory: the directory of the checkpoints.
      keep: number of checkpoints to keep; older ones are deleted.
      check: called before a save is started and before it is completed; raises to prevent that.
    """
    self._directory, self._keep, self._check = directory.absolute(), keep, check  # Orbax requires absolute paths
    self._directory.mkdir(parents=True, exist_ok=True)
    if jax.process_index() == 0:
      for unfinished in self._directory.glob(f'*{_UNFINISHED}*'):  # of a killed process
        shutil.rmtree(unfinished)
    self._saved = set(steps_in(self._directory))
    self._thread = ThreadPoolExecutor(1)
    self._pending: Future | None = None

  def __enter__(self) -> 'Checkpoints':
    return self

  def __exit__(self, *exception) -> None:
    try:
      self.wait()
    finally:
      self._thread.shutdown(wait=False)  # the thread is idle or hangs

  def save(self, state: State, about: About) -> None:
    """Starts writing the state under its step; returns when its arrays may be donated.

    Raises:
      SaveFailed: if this save cannot start, or the previous one failed.
    """
    self.wait()
    self._check()
    step = int(state.step)
    if step in self._saved:  # not looked up in the folder, which the first process may be changing
      return
    arrays = {name: int(value) for name, value in jax.device_get(array_checksums(state)).items()}
    unfinished = self._directory / f'{step}{_UNFINISHED}'
    try:
      with _CONTEXT:
        response = ocp.save_checkpointables_async(unfinished, {'state': state})
    except Exception as error:  # Orbax may raise anything
      _wait_for_writers()
      raise SaveFailed(self._directory / str(step), error) from error
    self._saved.add(step)
    self._pending = self._thread.submit(self._finish, response, step, {'arrays': arrays, 'about': about})

  def wait(self) -> None:
    """Waits for the current save; raises SaveFailed if it failed."""
    if self._pending is not None:
      pending, self._pending = self._pending, None
      if not wait_for([pending], ANNOUNCE_AFTER).done:
        logging.warning('still writing a checkpoint to %s, after %.0f s', self._directory, ANNOUNCE_AFTER)
        if not wait_for([pending], SAVE_WITHIN).done:
          raise SaveFailed(self._directory, TimeoutError(f'not done after {SAVE_WITHIN:.0f} s'))
      pending.result()

  def restore(self, like: State, check: Callable[[About], None]) -> Restored | None:
    """The newest intact state; deletes newer, damaged ones. None if there is no checkpoint.

    Args:
      like: arrays or jax.ShapeDtypeStructs with the structure, shapes, types and shardings of the state. The shardings
        may differ from those of the saved state; a leaf without one is placed on one device.
      check: called with the JSON stored with a checkpoint, before it is loaded; raises Damaged to skip the checkpoint,
        or another error to refuse it.

    Raises:
      ConfigError: if there are checkpoints, and all are damaged.
    """
    found = newest_intact(self._directory, lambda path: load_checkpoint(path, like, check))
    if found is None:
      return None
    (state, manifest), notes = found
    for damaged in sorted(self._saved, reverse=True)[: len(notes)]:
      self._saved.remove(damaged)
      if jax.process_index() == 0:
        shutil.rmtree(self._directory / str(damaged))
    return Restored(state, manifest['about'], [f'{note}: resumes from step {state.step}' for note in notes])

  def _finish(self, response: Any, step: int, manifest: Mapping[str, Any]) -> None:
    unfinished = self._directory / f'{step}{_UNFINISHED}'
    try:
      response.result()
      if jax.process_index() > 0:
        return
      self._check()
      write_manifest(unfinished, manifest)
      unfinished.rename(self._directory / str(step))
    except Exception as error:
      _wait_for_writers()
      raise SaveFailed(self._directory / str(step), error) from error
    for old in steps_in(self._directory)[self._keep :]:
      shutil.rmtree(self._directory / str(old))


def _wait_for_writers() -> None:
  """Waits for the threads of a failed save: Orbax returns at the first error, while other threads still write.

  Otherwise their files could appear in the folder after it is cleared for the next save in this process.
  """
  end = time.monotonic() + WRITERS_WITHIN
  writers = [thread for thread in threading.enumerate() if type(thread).__module__.startswith('orbax.')]
  for thread in writers:
    threading.Thread.join(thread, max(0.0, end - time.monotonic()))  # its own `join` would raise its error again
  if any(thread.is_alive() for thread in writers):
    logging.warning('threads of a failed save are still running after %.0f s', WRITERS_WITHIN)


def steps_in(directory: Path) -> list[int]:
  """The steps of the checkpoints in a folder, newest first."""
  names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
  return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def newest_intact(directory: Path, read: Callable[[Path], Any]) -> tuple[Any, list[str]] | None:
  """Reads the newest intact checkpoint.

  Args:
    directory: the directory of the checkpoints.
    read: called with the folder of a checkpoint; raises Damaged if it is damaged.

  Returns:
    The value of `read`, and a note for each newer checkpoint, which is damaged; None if there is no checkpoint.

  Raises:
    ConfigError: if there are checkpoints, and all are damaged.
  """
  notes: list[str] = []
  for step in steps_in(directory):
    try:
      return read(directory / str(step)), notes
    except Damaged as error:
      notes.append(f'checkpoint {step} is damaged: {error}')
  if notes:
    raise ConfigError(
      f'{"; ".join(notes)}: none is intact; restore the files, or move {directory.parent} away to train this run again'
    )
  return None


def load_checkpoint(
  path: Path, like: State, check: Callable[[About], None] = lambda about: None
) -> tuple[State, dict[str, Any]]:
  """The state of one checkpoint, and its manifest; the checksums of each file and array are verified.

  Args:
    path: its folder.
    like: see `Checkpoints.restore`.
    check: see `Checkpoints.restore`.

  Raises:
    Damaged: if a file or an array has changed, naming it.
  """
  path = path.absolute()  # Orbax requires it
  manifest = read_manifest(path)
  check(manifest['about'])
  one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  shapes = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or one_device), like
  )
  with _CONTEXT:
    state = ocp.load_checkpointables(path, {'state': shapes})['state']
  for name, value in jax.device_get(array_checksums(state)).items():
    if manifest['arrays'].get(name) != value:
      raise Damaged(f'{path}: {name} has changed since it was saved')
  return state, manifest
