"""How the runs of an experiment do, from their files alone: also while another process, or a cluster, trains them.

Whether a run is being trained, its lock tells. Where locks are seen on their own machine alone, as on some file systems
of clusters, a run that trains elsewhere shows as stopped, and its last log line as young.
"""

import collections
import time
from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.display import Display
from experiments.plan import Run
from experiments.slurm import RECORD
from training import locks, run_directory
from training.files import read_json
from training.metrics_log import read_metrics
from training.stored_run import finished_result

STATES = ('completed', 'diverged', 'failed_to_learn', 'running', 'failed', 'stopped', 'waiting')


class Status(NamedTuple):
  """How a run does.

  Attributes:
    state: one of STATES; `stopped` has begun, and waits to go on.
    step: the last that was logged; 0: none.
    loss: there.
    logged: when, in seconds since the epoch.
    note: who trains it, why it failed, or its Slurm job.
  """

  state: str
  step: int
  loss: float | None
  logged: float | None
  note: str


def status_of(run: Run) -> Status:
  """How a run does; raises ConfigError if a file of it is damaged."""
  log = run.directory / 'metrics.jsonl'
  rows = read_metrics(log)
  last = rows[-1] if rows else {'step': 0}
  record, failure = read_json(run.directory / RECORD) or {}, run_directory.read_failure(run.directory)
  trainer = locks.trainer(run.directory)
  note = f'job {record["job"]}' if record else ''
  damage = run_directory.damage(run.directory, run.config)
  result = None if damage else finished_result(run.directory, run.config)
  if result is not None:
    state, note = result['status'], ''
  elif trainer:
    state, note = 'running', trainer
  elif failure:
    state, note = 'failed', failure
  else:
    state, note = 'stopped' if rows else 'waiting', damage or note
  return Status(state, last['step'], last.get('train/loss'), log.stat().st_mtime if rows else None, note)


def show(runs: Sequence[Run], console: Console, extend: bool = False) -> int:
  """Prints a line a run, how many are in which state, and what the failed ones said last; returns the exit code.

  Raises:
    ConfigError: if a directory is another run's, or damaged.
  """
  for run in runs:
    run_directory.check(run.directory, run.config, extend)
  found = {run: status_of(run) for run in runs}
  table = Table(box=box.SIMPLE_HEAD)
  for column in ('run', 'state', 'step', 'loss', 'logged', ''):
    table.add_column(column, no_wrap=True, justify='right' if column in ('step', 'loss', 'logged') else 'left')
  for run, status in found.items():
    table.add_row(
      run.label,
      status.state.replace('_', ' '),
      f'{status.step}/{run.config.run.steps}',
      '' if status.loss is None else f'{status.loss:.3f}',
      '' if status.logged is None else _ago(time.time() - status.logged),
      Text('' if status.state == 'failed' else status.note),
    )
  console.print(table)
  for run, status in found.items():
    if status.state == 'failed':
      Display(console, 1, 0).failed(run, status.note, run.directory / 'log.txt')
  counts = collections.Counter(status.state for status in found.values())
  told = ', '.join(f'{counts[state]} {state.replace("_", " ")}' for state in STATES if counts[state])
  console.print(f'{len(runs)} runs: {told}', highlight=False)
  return 0


def _ago(seconds: float) -> str:
  for unit, length in (('d', 86400), ('h', 3600), ('min', 60)):
    if seconds >= 2 * length:
      return f'{seconds / length:.0f} {unit} ago'
  return f'{max(seconds, 0):.0f} s ago'
