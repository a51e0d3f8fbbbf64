"""What a person sees while runs train: a live table in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from experiments.plan import Run

LOG_LINES = 8  # of a failed run, shown


class Display:
  """Told of each run's start, progress and end. A context manager: the live table is there inside it."""

  def __init__(self, console: Console, total: int, finished: int):
    self._console, self._total, self._done = console, total, finished
    self._finished_before = finished
    self._started = time.monotonic()
    self._running: dict[Run, Mapping[str, Any]] = {}
    self._live = (
      Live(console=console, refresh_per_second=4, get_renderable=self._table) if console.is_terminal else None
    )

  def __enter__(self) -> 'Display':
    if self._live:
      self._live.start()
    return self

  def __exit__(self, *exception) -> None:
    if self._live:
      self._live.stop()

  def started(self, run: Run) -> None:
    """A worker has taken the run."""
    self._running[run] = {}

  def progress(self, run: Run, event: Mapping[str, Any]) -> None:
    """The run has logged a step, or has something to say."""
    if 'note' in event:
      self._say(f'{run.label}: {event["note"]}')
    else:
      self._running[run] = event

  def ended(self, run: Run, status: str) -> None:
    """The run has its result."""
    last = self._running.pop(run)
    self._done += 1
    loss = f', training loss {last["loss"]:.3f}' if last.get('loss') is not None else ''
    self._say(f'{run.label}: {status.replace("_", " ")}{loss} ({self._done} of {self._total}{self._left()})')

  def stopping(self) -> None:
    """The workers have been told to stop."""
    self._say('stopping: each run finishes its step and saves (a second Ctrl-C quits at once)')

  def stopped(self, run: Run, saved: bool) -> None:
    """The run has been stopped; if its worker could not save what it did, its next start does that again."""
    last = self._running.pop(run)
    at = f' after step {last["step"]}' if last else ''
    self._say(f'{run.label}: stopped{at}{"" if saved else ", not saved: it goes on from its last checkpoint"}')

  def failed(self, run: Run, error: str, log: Path | None) -> None:
    """The run has ended without a result; its log, if there is one that says why, is quoted."""
    self._running.pop(run, None)
    self._say(f'{run.label}: FAILED: {error}')
    if log is None:
      return
    for line in log.read_text('utf8', errors='replace').splitlines()[-LOG_LINES:] if log.exists() else []:
      self._say(f'  {line}')
    self._say(f'  (all of it in {log}; the same command again repeats this run alone)')

  def _say(self, line: str) -> None:
    self._console.print(line, markup=False, highlight=False, soft_wrap=True)

  def _left(self) -> str:
    """The time left, from the runs that ended so far and the shares of those under way."""
    shares = sum(event['step'] / event['steps'] for event in self._running.values() if event)
    worth = self._done - self._finished_before + shares
    if not worth or self._done == self._total:
      return ''
    seconds = (time.monotonic() - self._started) / worth * (self._total - self._finished_before - worth)
    return f', about {seconds / 60:.0f} min left' if seconds > 90 else f', about {seconds:.0f} s left'

  def _table(self) -> Table:
    table = Table(box=None, title=f'{self._done} of {self._total} runs done{self._left()}', title_justify='left')
    for name in ('run', 'step', '', 'loss', 'tokens/s'):
      table.add_column(name, justify='left' if name in ('run', '') else 'right')
    for run, event in self._running.items():
      if not event:
        table.add_row(run.label, 'starting')
        continue
      speed = event['tokens_per_second']
      table.add_row(
        run.label,
        f'{event["step"]}/{event["steps"]}',
        ProgressBar(total=event['steps'], completed=event['step'], width=20),
        '-' if event['loss'] is None else f'{event["loss"]:.3f}',
        '' if speed is None else f'{speed:,.0f}',
      )
    return table
