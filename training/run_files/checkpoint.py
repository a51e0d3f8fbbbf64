"""Checkpoints of the training state. The only module that imports orbax."""

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

# Folders are made before a save goes on in the background: where one cannot be made, orbax's threads would wait for it
# for 20 minutes, and the process could not end.
_CONTEXT = ocp.Context()
_CONTEXT.asynchronous.create_directories_asynchronously = False
# The lock of the run keeps others off its checkpoints; tensorstore's own would need a file system that has locks.
for _defaults in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
  _defaults['file_io_locking'] = {'mode': 'none'}
ANNOUNCE_AFTER = 30.0  # seconds of waiting for a save
SAVE_WITHIN = 3600.0  # seconds, after which a save counts as failed: orbax's threads may never come back
WRITERS_WITHIN = 60.0  # seconds for the other threads of a save that failed
_UNFINISHED = '.saving'  # ends the name of a folder until it is whole, its manifest with it

About = Mapping[str, Any]  # what a checkpoint says of itself: JSON


class Restored(NamedTuple):
  """A state, what its checkpoint says of itself, and a line for each newer checkpoint that was not whole."""

  state: State
  about: About
  notes: list[str]


class Checkpoints:
  """The checkpoints of one run, by step. A context manager: leaving it waits for the last save, and fails with it.

  A folder under the name of its step is whole, or has been damaged since: it is renamed when all is written. Its
  manifest holds the sha256 of every file, the checksum of every array, and what the run says of itself. Where several
  processes train the run, each writes and reads its own part of the arrays, and the first one does the rest.
  """

  def __init__(self, directory: Path, keep: int, check: Callable[[], None] = lambda: None):
    """Opens the directory, and creates it.

    Args:
      directory: of the checkpoints.
      keep: how many to keep; older ones are deleted.
      check: raises what a save must not be begun, or completed, for.
    """
    self._directory, self._keep, self._check = directory.absolute(), keep, check  # orbax takes no other
    self._directory.mkdir(parents=True, exist_ok=True)
    if jax.process_index() == 0:
      for unfinished in self._directory.glob(f'*{_UNFINISHED}*'):  # a save that was killed
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
      self._thread.shutdown(wait=False)  # it has nothing left to do, or hangs

  def save(self, state: State, about: About) -> None:
    """Starts writing the state, under its step; returns when the device's memory may be used again.

    Raises:
      SaveFailed: if this save cannot start, or the one before it failed.
    """
    self.wait()
    self._check()
    step = int(state.step)
    if step in self._saved:  # as this process knows; what is in the folder is the first process's to change
      return
    arrays = {name: int(value) for name, value in jax.device_get(array_checksums(state)).items()}
    unfinished = self._directory / f'{step}{_UNFINISHED}'
    try:
      with _CONTEXT:
        response = ocp.save_checkpointables_async(unfinished, {'state': state})
    except Exception as error:  # whatever orbax may raise
      _wait_for_writers()
      raise SaveFailed(self._directory / str(step), error) from error
    self._saved.add(step)
    self._pending = self._thread.submit(self._finish, response, step, {'arrays': arrays, 'about': about})

  def wait(self) -> None:
    """Waits for the save under way; raises SaveFailed if it did."""
    if self._pending is not None:
      pending, self._pending = self._pending, None
      if not wait_for([pending], ANNOUNCE_AFTER).done:
        logging.warning('still writing a checkpoint to %s, after %.0f s', self._directory, ANNOUNCE_AFTER)
        if not wait_for([pending], SAVE_WITHIN).done:
          raise SaveFailed(self._directory, TimeoutError(f'not done after {SAVE_WITHIN:.0f} s'))
      pending.result()

  def restore(self, like: State, check: Callable[[About], None]) -> Restored | None:
    """The newest state that is whole; newer ones that are not are deleted then. None where there is no checkpoint.

    Args:
      like: gives the structure, shapes, types and shardings (arrays or jax.ShapeDtypeStruct; one without a sharding
        goes to one device), which need not be those it was saved with.
      check: is told what a checkpoint says of itself, before it is loaded; raises Damaged if it is of no use, or
        whatever refuses it.

    Raises:
      ConfigError: if there are checkpoints, and none is whole.
    """
    found = newest_intact(self._directory, lambda path: load(path, like, check))
    if found is None:
      return None
    (state, manifest), notes = found
    for damaged in sorted(self._saved, reverse=True)[: len(notes)]:
      self._saved.remove(damaged)
      if jax.process_index() == 0:
        shutil.rmtree(self._directory / str(damaged))
    return Restored(state, manifest['about'], [f'{note}: went on from step {state.step}' for note in notes])

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
  """Waits for the threads of a save that failed: orbax leaves it with the first, and the others write on.

  Whoever goes on with the run in this process would find their files in the folder it clears and uses again.
  """
  end = time.monotonic() + WRITERS_WITHIN
  writers = [thread for thread in threading.enumerate() if type(thread).__module__.startswith('orbax.')]
  for thread in writers:
    threading.Thread.join(thread, max(0.0, end - time.monotonic()))  # its own join raises its own error again
  if any(thread.is_alive() for thread in writers):
    logging.warning('threads of a save that failed are still at work after %.0f s', WRITERS_WITHIN)


def steps_in(directory: Path) -> list[int]:
  """The steps of the checkpoints in a folder, the newest first."""
  names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
  return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def newest_intact(directory: Path, read: Callable[[Path], Any]) -> tuple[Any, list[str]] | None:
  """What `read` gives for the newest checkpoint that is whole, and a line for each newer one; None if there is none.

  Args:
    directory: of the checkpoints.
    read: is given the folder of one; raises Damaged if it is not whole.

  Raises:
    ConfigError: if there are checkpoints, and none is whole.
  """
  notes: list[str] = []
  for step in steps_in(directory):
    try:
      return read(directory / str(step)), notes
    except Damaged as error:
      notes.append(f'checkpoint {step} is damaged: {error}')
  if notes:
    raise ConfigError(
      f'{"; ".join(notes)}: none is whole; restore what has changed, or move '
      f'{directory.parent} away to train this run again'
    )
  return None


def load(path: Path, like: State, check: Callable[[About], None] = lambda about: None) -> tuple[State, dict[str, Any]]:
  """The state of one checkpoint, each file and array compared with its checksum, and its manifest.

  Args:
    path: its folder.
    like: see `Checkpoints.restore`.
    check: likewise.

  Raises:
    Damaged: if something is not what was written; the message names it.
  """
  path = path.absolute()  # orbax takes no other
  manifest = read_manifest(path)
  check(manifest['about'])
  alone = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  shapes = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or alone), like
  )
  with _CONTEXT:
    state = ocp.load_checkpointables(path, {'state': shapes})['state']
  for name, value in jax.device_get(array_checksums(state)).items():
    if manifest['arrays'].get(name) != value:
      raise Damaged(f'{path}: {name} is not what was saved')
  return state, manifest
