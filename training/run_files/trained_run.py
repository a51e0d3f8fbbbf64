"""Loads the config and the checkpoints of a run, which may still be training.

config, params = load_params('runs/block/baseline/seed_0')
logits_BTV, _ = model.apply(config.model, params, tokens_BT)

If an experiment file registered a part of its model, load it before, which executes it:
training.ideas.load(Path('ideas/my_gate.py')).
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np

from training.config import Config, ConfigError
from training.files import Damaged
from training.ideas import check_loaded
from training.run_files import checkpoint, run_directory
from training.run_files.stored_run import read_config
from training.state import State, init_state

Weights = Literal['evaluated', 'raw']


class CheckpointDeleted(Exception):  # noqa: N818 - an event
  """Training deleted a checkpoint before it could be read, since it keeps only the newest ones."""


def load_params(
  directory: str | os.PathLike, step: int | Literal['latest'] = 'latest', weights: Weights = 'evaluated'
) -> tuple[Config, Any]:
  """The config and the parameters of a trained run; the checksums of each file and array are verified.

  Args:
    directory: the run's directory, such as runs/block/baseline/seed_0.
    step: a checkpoint's step, or `latest`.
    weights: `evaluated`: the weights that the run's losses are measured with, which are the moving average with
      optimizer.ema; `raw`: the weights that training continues from.

  Returns:
    The run's config, and the parameters, a pure tree as returned by `model.init`, for
    `model.apply(config.model, params, tokens_BT)`.

  Raises:
    ConfigError: if there is no run or no such checkpoint, the run is from another version, a part of its model was
      registered by a file that is not loaded, or a file is damaged.
  """
  directory = Path(directory).expanduser()
  if weights not in get_args(Weights):
    raise ConfigError(f'weights={weights!r}: must be one of {", ".join(get_args(Weights))}')
  config, steps = open_run(directory)
  if not steps:
    raise ConfigError(f'{directory} has no checkpoint yet: train it first')
  if step != 'latest' and step not in steps:
    raise ConfigError(f'{directory} has no checkpoint of step={step!r}; available: {", ".join(map(str, steps))}')
  try:
    state = checkpointed_state(config, directory, steps[-1] if step == 'latest' else int(step))
  except CheckpointDeleted as error:
    raise ConfigError(f'{error}; load one of these, or wait until the training has finished') from None
  return config, state.evaluated_params if weights == 'evaluated' else state.params


def open_run(directory: Path) -> tuple[Config, list[int]]:
  """A run's config, and the steps of its checkpoints in ascending order; only reads.

  Raises:
    ConfigError: if there is no run, its config was written by another version, or a part of its model was registered by
      a file that is not loaded.
  """
  flat = read_config(directory)
  if flat is None:
    raise ConfigError(f'there is no run in {directory}: pass a run directory, such as runs/block/baseline/seed_0')
  try:
    config = Config.from_flat(flat)
  except ConfigError as error:
    raise ConfigError(f'{directory / "config.json"}: {error}') from None
  check_loaded(config.model, directory)
  return config, checkpoint_steps(directory)


def checkpoint_steps(directory: Path) -> list[int]:
  """The steps of a run's checkpoints, in ascending order."""
  return sorted(checkpoint.steps_in(directory / 'checkpoints'))


def checkpointed_state(config: Config, directory: Path, step: int) -> State:
  """The state of one checkpoint, on one device.

  Raises:
    CheckpointDeleted: if training has since written enough newer ones to delete this one.
    ConfigError: if it is damaged, or belongs to another run.
  """
  like = jax.eval_shape(lambda seed: init_state(config, seed), jax.ShapeDtypeStruct((), np.uint32))
  try:
    return checkpoint.load_checkpoint(directory / 'checkpoints' / str(step), like, config_check(directory, config))[0]
  except Exception as error:  # orbax may raise anything if files are deleted while it reads them
    steps, keep = checkpoint_steps(directory), config.run.keep_checkpoints
    if step not in steps or sum(newer > step for newer in steps) >= keep:
      raise CheckpointDeleted(
        f'the checkpoint of step {step} in {directory} was deleted, since the run is still training and keeps only '
        f'its newest {keep}; available: {format_steps(steps[-keep:])}'
      ) from error
    if isinstance(error, Damaged):
      raise ConfigError(f'{error}: choose another --step, or train the run again') from None
    raise


def config_check(directory: Path, config: Config) -> Callable[[checkpoint.About], None]:
  """A check that raises ConfigError for a checkpoint of a run whose config differs in more than the steps."""

  def check(about: checkpoint.About) -> None:
    differing = run_directory.differences(about['run'], run_directory.identity(config))
    differing.pop('run.steps', None)  # differs while a run is extended
    if differing:
      raise ConfigError(f'{directory / "config.json"} does not match its checkpoints ({"; ".join(differing.values())})')

  return check


def format_steps(steps: Sequence[int]) -> str:
  """The steps that can be inspected in a run with these checkpoints: `init and 24, 36`."""
  return f'init and {", ".join(map(str, steps))}' if steps else 'only init'
