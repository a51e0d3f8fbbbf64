"""A run that starts from another run's parameters: --init_from."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from training.config import Config, ConfigError
from training.digests import Damaged
from training.ideas import check_loaded
from training.identity import identity_of
from training.mesh import by_rule
from training.paths import parse_path
from training.run_files import run_directory
from training.run_files.checkpoint import load_checkpoint, steps_in
from training.run_files.stored_run import read_config
from training.run_files.trained_run import config_check
from training.state import init_state


def check_source(config: Config) -> Path:
  """The newest checkpoint of the run that config.run.init_from names.

  Raises:
    ConfigError: if the run or its checkpoint is missing, a part of its model was registered by a file that is not
      loaded, or its model differs from this run's (naming every field).
  """
  run = parse_path(config.run.init_from, '--init_from')
  stored = read_config(run)
  if stored is None:
    raise ConfigError(f'--init_from={run}: not a run (no config.json): pass one, such as runs/block/baseline/seed_0')
  try:
    check_loaded(Config.from_flat(stored).model, run)
  except ConfigError as error:
    raise ConfigError(f'--init_from={run}: {error}') from None
  models = [
    {path: value for path, value in identity_of(flat).items() if path.startswith('model.')}
    for flat in (stored, config.to_flat())
  ]
  differing = run_directory.differences(*models)
  if differing:
    raise ConfigError(f"--init_from={run}: its model differs from this run's ({'; '.join(differing.values())})")
  steps = steps_in(run / 'checkpoints')
  if not steps:
    raise ConfigError(f'--init_from={run}: it has no checkpoint: train it first')
  return run / 'checkpoints' / str(steps[0])


def source_params(config: Config, mesh: Mesh) -> tuple[Any, dict[str, Any]]:
  """The parameters of the run that config.run.init_from names, on a mesh, and their origin: {'run', 'step', 'sha256'}.

  Raises:
    ConfigError: see `check_source`; also if the checkpoint is damaged.
  """
  path = check_source(config)
  source = Config.from_flat(read_config(path.parents[1]) or {})
  like = jax.eval_shape(lambda seed: init_state(source, seed), jax.ShapeDtypeStruct((), np.uint32))
  placed = jax.tree.map(lambda leaf, sharding: leaf.update(sharding=sharding), like, by_rule(mesh, like))
  try:
    state, manifest = load_checkpoint(path, placed, config_check(path.parents[1], source))
  except Damaged as error:
    raise ConfigError(f'--init_from={config.run.init_from}: the checkpoint is damaged: {error}') from None
  return state.params, {'run': config.run.init_from, 'step': int(state.step), 'sha256': manifest['sha256']}
