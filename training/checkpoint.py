"""Checkpoints of the training state. The only module that imports orbax."""

from pathlib import Path

import jax
from orbax.checkpoint import v1 as ocp

from training.config import ConfigError
from training.step import State

# Folders are made before a save goes on in the background: where one cannot be made, orbax's threads would wait for it
# for 20 minutes, and the process could not end.
_CONTEXT = ocp.Context()
_CONTEXT.asynchronous.create_directories_asynchronously = False
_SAVE_WHEN_ASKED = ocp.training.save_decision_policies.FixedIntervalPolicy(1)


class Checkpoints:
  """The checkpoints of one run, by step. A context manager: leaving it waits for the last save, and fails with it."""

  def __init__(self, directory: Path, keep: int):
    self._checkpointer = ocp.training.Checkpointer(
      directory.absolute(),  # orbax takes no other
      context=_CONTEXT,
      save_decision_policy=_SAVE_WHEN_ASKED,
      preservation_policy=ocp.training.preservation_policies.LatestN(keep),
      cleanup_tmp_directories=True,  # of a save that was killed
    )
    self._pending = None

  def __enter__(self) -> 'Checkpoints':
    return self

  def __exit__(self, *exception) -> None:
    try:
      self.wait()
    finally:
      self._checkpointer.close()

  def latest_step(self) -> int | None:
    """The step of the newest checkpoint, or None."""
    latest = self._checkpointer.latest
    return None if latest is None else latest.step

  def save(self, state: State) -> None:
    """Starts writing the state, under its step; returns when the device's memory may be used again."""
    self.wait()
    step = int(state.step)
    if step != self.latest_step():
      self._pending = self._checkpointer.save_checkpointables_async(step, {'state': state})

  def wait(self) -> None:
    """Waits for the save under way, and raises what went wrong in it."""
    if self._pending is not None:
      self._pending.result()
      self._pending = None

  def restore(self, step: int, like: State) -> State:
    """The state saved at `step`; `like` gives its structure, shapes and types (arrays or jax.ShapeDtypeStruct)."""
    return self._checkpointer.load_checkpointables(step, {'state': _shapes(like)})['state']


def saved_steps(directory: Path) -> list[int]:
  """The steps of the checkpoints in a directory, in order; looks, and touches nothing."""
  names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
  return sorted(int(name) for name in names if name.isdecimal())


def load(directory: Path, step: int, like: State) -> State:
  """The state of one checkpoint, without opening the directory for writing: a run may be under way there.

  Raises:
    ConfigError: if it is not of the shapes of `like`.
  """
  path = directory.absolute() / str(step)
  saved = ocp.checkpointables_metadata(path).metadata['state']
  for keys, leaf in jax.tree.leaves_with_path(like.params):
    node = saved['params']
    for key in keys:
      node = node.get(key.key, {}) if isinstance(node, dict) else {}
    shape = getattr(node, 'shape', None)
    if shape != leaf.shape:
      name = '/'.join(key.key for key in keys)
      raise ConfigError(f'{path} is of another model: {name} is {shape or "missing"} there, and {leaf.shape} here')
  return ocp.load_checkpointables(path, {'state': _shapes(like)})['state']


def _shapes(like: State) -> State:
  placed = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed), like)
