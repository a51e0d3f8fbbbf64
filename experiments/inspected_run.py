"""A run as the inspector reads it: its config, its checkpoints and their parameters; also while it is being trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from training import checkpoint
from training.config import Config, ConfigError
from training.digests import Damaged
from training.step import init_state
from training.stored_run import read_config


class Rotated(Exception):  # noqa: N818 - what has happened
  """A checkpoint was deleted before it was read, since training keeps the newest ones alone; the message says so."""


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


def steps_asked_for(directory: Path, there: Sequence[int], asked: str) -> list[int]:
  """The steps to look at: 0 for the initial values, and checkpoints.

  Args:
    directory: of the run.
    there: the steps of its checkpoints.
    asked: `latest` (and the initial values beside it), `init`, `all` or a number.

  Raises:
    ConfigError: if there is no such checkpoint.
  """
  if asked == 'init' or (asked in ('0', 'all') and not there):
    return [0]
  if not there:
    raise ConfigError(f'{directory} has no checkpoint yet: --step=init looks at its initial values')
  if asked in ('latest', 'all'):
    return [0, *(there if asked == 'all' else there[-1:])]
  if not asked.isdecimal():
    raise ConfigError(f'--step={asked}: write init, latest, all or a number')
  if int(asked) not in [0, *there]:
    raise ConfigError(f'{directory} has no checkpoint of step {asked}: there are {_listed(there)}')
  return [int(asked)]


def load_params(config: Config, directory: Path, step: int) -> Any:
  """The parameters of one checkpoint.

  Raises:
    Rotated: if training has since written as many newer ones as it keeps, and this one is not whole any more.
    ConfigError: if it is damaged.
  """
  like = jax.eval_shape(lambda: init_state(config, jnp.uint32(config.run.init_seed)))
  path = directory / 'checkpoints' / str(step)
  try:
    return checkpoint.load(path, like)[0].params
  except Exception as error:  # orbax may raise anything where files are deleted while it reads them
    there, keep = checkpoint_steps(directory), config.run.keep_checkpoints
    if step not in there or sum(newer > step for newer in there) >= keep:
      raise Rotated(
        f'{directory} has no whole checkpoint of step {step} any more, since its training continues and keeps the '
        f'newest {keep}: there are {_listed(there[-keep:])}'
      ) from error
    if isinstance(error, Damaged):
      raise ConfigError(f'{error}: look at another --step, or train the run again') from None
    raise


def _listed(steps: Sequence[int]) -> str:
  return f'init and {", ".join(map(str, steps))}' if steps else 'init alone'
