"""Selects the training steps of a run to inspect."""

from collections.abc import Sequence
from pathlib import Path

from training.config import ConfigError
from training.run_files.trained_run import format_steps


def select_steps(directory: Path, checkpoints: Sequence[int], step: str) -> list[int]:
  """The steps to inspect; 0 stands for the initial parameters.

  Args:
    directory: the run directory.
    checkpoints: the steps of its checkpoints.
    step: the value of --step: `latest` (which includes the initial parameters), `init`, `all` or a number.

  Raises:
    ConfigError: if there is no such checkpoint.
  """
  if step == 'init' or (step in ('0', 'all') and not checkpoints):
    return [0]
  if not checkpoints:
    raise ConfigError(f'{directory} has no checkpoint yet: inspect its initial parameters with --step=init')
  if step in ('latest', 'all'):
    return [0, *(checkpoints if step == 'all' else checkpoints[-1:])]
  if not step.isdecimal():
    raise ConfigError(f'--step={step}: must be init, latest, all or a number')
  if int(step) not in [0, *checkpoints]:
    raise ConfigError(f'{directory} has no checkpoint of step {step}; available: {format_steps(checkpoints)}')
  return [int(step)]
