"""A trained run in Python: its config, its checkpoints and their parameters; also while it is being trained.

config, params = load_params('runs/block/baseline/seed_0')
logits_BTV, _ = model.apply(config.model, params, tokens_BT)
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np

from training.config import Config, ConfigError
from training.files import Damaged
from training.run_files import checkpoint, run_directory
from training.run_files.stored_run import read_config
from training.state import State, init_state

Weights = Literal['evaluated', 'raw']


class CheckpointDeleted(Exception):  # noqa: N818 - what has happened
  """A checkpoint was deleted before it was read, since training keeps the newest ones alone; the message says so."""


def load_params(
  directory: str | os.PathLike, step: int | Literal['latest'] = 'latest', weights: Weights = 'evaluated'
) -> tuple[Config, Any]:
  """The parameters of a trained run, each file and array compared with its checksum.

  Args:
    directory: of the run, as runs/block/baseline/seed_0.
    step: of a checkpoint, or `latest`.
    weights: `evaluated`: those that the run's losses are measured with, which with optimizer.ema are the moving
      average; `raw`: those that training continues from.

  Returns:
    The run's config, and the parameters, a pure tree as `model.init` makes it: for
    `model.apply(config.model, params, tokens_BT)`.

  Raises:
    ConfigError: if there is no run or no such checkpoint, the run is of another version, or something is damaged.
  """
  directory = Path(directory).expanduser()
  if weights not in get_args(Weights):
    raise ConfigError(f'weights={weights!r}: must be one of {", ".join(get_args(Weights))}')
  config, there = open_run(directory)
  if not there:
    raise ConfigError(f'{directory} has no checkpoint yet: train it first')
  if step != 'latest' and step not in there:
    raise ConfigError(f'{directory} has no checkpoint of step={step!r}: there are {", ".join(map(str, there))}')
  try:
    state = checkpointed_state(config, directory, there[-1] if step == 'latest' else int(step))
  except CheckpointDeleted as error:
    raise ConfigError(f'{error}; load it again, or once it is trained') from None
  return config, state.evaluated_params if weights == 'evaluated' else state.params


def open_run(directory: Path) -> tuple[Config, list[int]]:
  """A run's config, and the steps of its checkpoints in ascending order; nothing in it is touched.

  Raises:
    ConfigError: if there is no run, or its config is of another version.
  """
  flat = read_config(directory)
  if flat is None:
    raise ConfigError(f'there is no run in {directory}: give the directory of one, as runs/block/baseline/seed_0')
  try:
    return Config.from_flat(flat), checkpoint_steps(directory)
  except ConfigError as error:
    raise ConfigError(f'{directory / "config.json"}: {error}') from None


def checkpoint_steps(directory: Path) -> list[int]:
  """The steps of a run's checkpoints, in ascending order."""
  return sorted(checkpoint.steps_in(directory / 'checkpoints'))


def checkpointed_state(config: Config, directory: Path, step: int) -> State:
  """The state of one checkpoint, on one device.

  Raises:
    CheckpointDeleted: if training has since written as many newer ones as it keeps, and this one is not whole any more.
    ConfigError: if it is damaged, or the checkpoint of another run.
  """
  like = jax.eval_shape(lambda seed: init_state(config, seed), jax.ShapeDtypeStruct((), np.uint32))
  try:
    return checkpoint.load(directory / 'checkpoints' / str(step), like, config_check(directory, config))[0]
  except Exception as error:  # orbax may raise anything where files are deleted while it reads them
    there, keep = checkpoint_steps(directory), config.run.keep_checkpoints
    if step not in there or sum(newer > step for newer in there) >= keep:
      raise CheckpointDeleted(
        f'{directory} has no whole checkpoint of step {step} any more, since its training continues and keeps the '
        f'newest {keep}: there are {format_steps(there[-keep:])}'
      ) from error
    if isinstance(error, Damaged):
      raise ConfigError(f'{error}: look at another --step, or train the run again') from None
    raise


def config_check(directory: Path, config: Config) -> Callable[[checkpoint.About], None]:
  """Raises ConfigError where what a checkpoint in the directory says of itself is not `config`, but for the steps."""

  def check(about: checkpoint.About) -> None:
    differing = run_directory.differences(about['run'], run_directory.identity(config))
    differing.pop('run.steps', None)  # as of a run that is about to be extended
    if differing:
      raise ConfigError(
        f'{directory / "config.json"} is not that of the checkpoints beside it ({"; ".join(differing.values())})'
      )

  return check


def format_steps(steps: Sequence[int]) -> str:
  """`init and 24, 36`: what there is to look at in a run that has checkpoints of these steps."""
  return f'init and {", ".join(map(str, steps))}' if steps else 'init alone'
