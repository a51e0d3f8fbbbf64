"""The directory of an unfinished run, produced without training."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from training.config import Config
from training.data.loading import Data
from training.mesh import make_mesh
from training.programs import Programs
from training.resume import restore_or_init
from training.run_files import run_directory
from training.run_files.checkpoint import Checkpoints
from training.run_files.environment import record_environment
from training.run_files.metrics_log import MetricsLog
from training.state import State, init_state


def state_at(step: int, config: Config) -> State:
  """A state in which every number is the step."""
  shapes = jax.eval_shape(lambda seed: init_state(config, seed), jax.ShapeDtypeStruct((), np.uint32))
  return jax.tree.map(lambda leaf: jnp.full(leaf.shape, step, leaf.dtype), shapes)


def start(directory: Path, config: Config, data: Data):
  """The result of `restore_or_init`, and its notes; initial values are 0, and nothing is compiled."""
  notes: list[str] = []
  programs = Programs(make_mesh(config), lambda seed: state_at(0, config), None, None)
  with Checkpoints(directory / 'checkpoints', 2) as checkpoints:
    return *restore_or_init(config, directory, data, programs, checkpoints, notes.append), notes


def make_run(directory: Path, config: Config, data: Data) -> Path:
  """Writes a run with checkpoints of steps 24 and 36, and a line in its log for each."""
  run_directory.prepare(directory, config)
  _, about, resumed_at, notes = start(directory, config, data)
  assert (resumed_at, notes) == (None, [])
  record_environment(directory, data.checksum, resumed=False)
  with MetricsLog(directory) as log, Checkpoints(directory / 'checkpoints', 2) as checkpoints:
    for step in (24, 36):
      log.write(step, {'train/loss': 1.0})
      checkpoints.save(state_at(step, config), {**about, 'log': log.sync()})
  return directory
