"""--status: the state of each run, read from its files, also while another process or a cluster trains it.

A run's lock shows whether it is being trained. On file systems whose locks are not visible to other machines, as on
some clusters, a run that trains on another machine is shown as stopped, with a recent last log line.
"""

import collections
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lab.cli.tables import new_table
from lab.core.find_runs import find_runs
from lab.core.run import Run
from lab.launch.progress import ProgressDisplay
from lab.launch.slurm import read_job_id
from training.config import Config
from training.files import Damaged
from training.metric_names import TRAIN_LOSS
from training.run_files import locks, run_directory, stored_run
from training.run_files.metrics_log import read_metrics
from training.run_files.stored_run import finished_result

COLUMNS = ('run', 'state', 'step', 'loss', 'logged', '')
LONGEST_NOTE = 50  # characters; longer notes are printed below the table
NAME_WIDTH, NOTE_WIDTH = 30, 14  # the minimum before another column is dropped
STATES = ('completed', 'diverged', 'failed_to_learn', 'running', 'failed', 'stopped', 'waiting')


class Status(NamedTuple):
  """The state of a run.

  Attributes:
    state: one of STATES; a `stopped` run has started and can be resumed.
    step: the last logged step; 0 if there is none.
    loss: the training loss at that step.
    logged: the time of that step, in seconds since the epoch.
    note: the process that trains the run, why it failed, damage to its files, or its Slurm job.
  """

  state: str
  step: int
  loss: float | None
  logged: float | None
  note: str


def status_of(run: Run) -> Status:
  """The state of a run; its note describes a damaged file."""
  log = run.directory / 'metrics.jsonl'
  damage, unreadable = run_directory.damage(run.directory, run.config), ''
  try:
    rows = read_metrics(log)
  except Damaged as error:
    rows, unreadable = [], error.what
  last = rows[-1] if rows else {'step': 0}
  job, failure = read_job_id(run.directory), run_directory.read_failure(run.directory)
  trainer = locks.trainer(run.directory)
  note = f'job {job}' if job else ''
  result = None if damage else finished_result(run.directory, run.config)
  if result is not None:
    state, note = result['status'], unreadable
  elif trainer:
    state, note = 'running', trainer
  elif failure:
    state, note = 'failed', failure.error
  else:
    state, note = 'stopped' if rows or damage or unreadable else 'waiting', damage or unreadable or note
  return Status(state, last['step'], last.get(TRAIN_LOSS), log.stat().st_mtime if rows else None, note)


def print_status(runs: Sequence[Run], console: Console, extend: bool = False) -> int:
  """Prints a row per run, the end of the log of failed runs, and the number of runs in each state; returns 0.

  If a directory contains a different run from the requested one, the state of that run and a line about it are printed.

  Raises:
    ConfigError: if a directory is damaged.
  """
  shown: list[Run] = []
  others: list[str] = []
  for run in runs:
    try:
      run_directory.check(run.directory, run.config, extend, reads=True)
      shown.append(run)
    except run_directory.OtherRun as error:
      stored = stored_run.read_config(run.directory)
      if stored is None:  # only a checkpoint identifies the run
        raise
      shown.append(dataclasses.replace(run, config=Config.from_flat(stored)))
      others.append(error.what)
  _print_table({run: status_of(run) for run in shown}, console)
  if others:
    more = f' (and {len(others) - 1} more)' if len(others) > 1 else ''
    line = f'this command would train other runs: {others[0]}{more}; the table shows the existing runs'
    console.print(line, markup=False, highlight=False, soft_wrap=True)
  return 0


def print_workdir_status(workdir: Path, console: Console) -> int:
  """Prints the status of all runs of all experiments in a work directory; returns 0."""
  found = find_runs(workdir)
  if found.runs:
    _print_table({run: status_of(run) for run in found.runs}, console)
  else:
    console.print(f'no runs in {workdir} yet', markup=False, highlight=False, soft_wrap=True)
  for line in (*found.damaged, *(f'{directory}: not started' for directory in found.without_config)):
    console.print(line, soft_wrap=True)
  return 0


def _print_table(found: Mapping[Run, Status], console: Console) -> None:
  console.print(_table(found, console.width))
  for run, status in found.items():
    if status.state == 'failed':
      failure = run_directory.read_failure(run.directory)
      start = failure.log_start if failure else 0
      ProgressDisplay(console, 1, 0).failed(run, status.note, run.directory / 'log.txt', start)
    elif not _is_short(status):
      console.print(f'{run.label}: {status.note}', markup=False, highlight=False, soft_wrap=True)
  counts = collections.Counter(status.state for status in found.values())
  states = ', '.join(f'{counts[state]} {state.replace("_", " ")}' for state in STATES if counts[state])
  console.print(f'{len(found)} run{"s" if len(found) > 1 else ""}: {states}')


def _is_short(status: Status) -> bool:
  """Whether a note is shown in the table; failures and long notes are printed below it."""
  return status.state != 'failed' and len(status.note) <= LONGEST_NOTE


def _table(found: Mapping[Run, Status], width: int) -> Table:
  """One row per run. If the terminal is too narrow, some columns are dropped; names are folded, never cut."""
  rows = [
    {
      'run': run.label,
      'state': status.state.replace('_', ' '),
      'step': f'{status.step}/{run.config.run.steps}',
      'loss': '' if status.loss is None else f'{status.loss:.3f}',
      'logged': '' if status.logged is None else _ago(time.time() - status.logged),
      '': status.note if _is_short(status) else '',
    }
    for run, status in found.items()
  ]
  columns = [name for name in COLUMNS if name in ('run', 'state', 'step') or any(row[name] for row in rows)]
  widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
  for name in ('logged', '', 'loss'):  # the least important first
    if name in columns and _minimum_width(columns, widths) > width:
      columns.remove(name)
  table = new_table()
  for name in columns:
    right, folds = name in ('step', 'loss', 'logged'), name in ('run', '')
    table.add_column(name, no_wrap=not folds, overflow='fold', justify='right' if right else 'left')
  for row in rows:
    table.add_row(*(Text(row[name]) for name in columns))
  return table


def _minimum_width(columns: Sequence[str], widths: Mapping[str, int]) -> int:
  """The minimum width of a table with these columns, in which names and notes may be folded."""
  folded = {'run': min(widths['run'], NAME_WIDTH), '': min(widths.get('', 0), NOTE_WIDTH)}
  return sum(folded.get(name, widths[name]) + 2 for name in columns)


def _ago(seconds: float) -> str:
  for unit, length in (('d', 86400), ('h', 3600), ('min', 60)):
    if seconds >= 2 * length:
      return f'{seconds / length:.0f} {unit} ago'
  return f'{max(seconds, 0):.0f} s ago'
