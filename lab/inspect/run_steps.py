"""Which steps of a run the inspector looks at."""

from collections.abc import Sequence
from pathlib import Path

from training.config import ConfigError
from training.run_files.trained_run import format_steps


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
    raise ConfigError(f'{directory} has no checkpoint of step {asked}: there are {format_steps(there)}')
  return [int(asked)]
