"""The progress display of a launch: a live table in a terminal, plain lines otherwise."""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from lab.core.run import Run

LOG_LINES = 8  # printed from the end of a failed run's log
# Without a terminal: seconds between the lines about a run. The interval doubles, from the first to the last.
FIRST_INTERVAL, LAST_INTERVAL = 10.0, 300.0


@dataclasses.dataclass
class RunProgress:
  """The progress of a run that is being trained.

  Attributes:
    started: when a worker started it.
    last_line: when a line about it was last printed.
    step: its last logged step: {'step', 'steps', 'loss', 'tokens_per_second'}; empty before the first one.
    phase: its activity between steps: {'doing'} or {'evaluating', 'done', 'of'}; empty while it trains.
  """

  started: float
  last_line: float
  step: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  phase: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def short_text(self) -> str:
    """The current activity, short enough for a table."""
    if 'evaluating' in self.phase:
      return f'evaluating: {self.phase["evaluating"]}'
    if self.phase or not self.step:
      return self.phase.get('doing', 'starting')
    return f'{self.step["step"]}/{self.step["steps"]}'

  @property
  def done_and_total(self) -> tuple[int, int] | None:
    """The completed steps and their total, or the evaluated tokens and their total; None if unknown."""
    if 'evaluating' in self.phase:
      return self.phase['done'], self.phase['of']
    return (self.step['step'], self.step['steps']) if self.step and not self.phase else None

  @property
  def line(self) -> str:
    """The current activity, as a line."""
    if 'evaluating' in self.phase:
      return f'{self.short_text}, {self.phase["done"]:,} of {self.phase["of"]:,} tokens'
    if self.phase or not self.step:
      return self.short_text
    return f'training, step {self.short_text}{self.format_loss(", loss ")}'

  def format_loss(self, prefix: str = '') -> str:
    """The training loss at the last logged step, after a prefix; empty if there is none."""
    loss = self.step.get('loss')
    return '' if loss is None else f'{prefix}{loss:.3f}'


class ProgressDisplay:
  """Prints the start, the progress and the end of each run. A context manager: the live table is shown inside it.

  Without a terminal it prints a line when a run ends or fails. A run that is still training gets lines after 10, 20,
  40, ... seconds, and then every 5 minutes.

  Args:
    console: where to print.
    total: the number of runs, including those that were already finished.
    finished: the number of runs that were already finished.
    clock: returns the time in seconds.
  """

  def __init__(self, console: Console, total: int, finished: int, clock: Callable[[], float] = time.monotonic):
    self._console, self._total, self._done = console, total, finished
    self._finished_before, self._clock, self._started = finished, clock, clock()
    self._running: dict[Run, RunProgress] = {}
    self._live = (
      Live(console=console, refresh_per_second=4, get_renderable=self._table) if console.is_terminal else None
    )
    self._closed, self._printer = threading.Event(), threading.Thread(target=self._print_until_closed, daemon=True)

  def __enter__(self) -> 'ProgressDisplay':
    self._live.start() if self._live else self._printer.start()
    return self

  def __exit__(self, *exception) -> None:
    if self._live:
      self._live.stop()
    else:
      self._closed.set()
      self._printer.join()

  def started(self, run: Run) -> None:
    """Called when a worker has started the run."""
    self._running[run] = RunProgress(self._clock(), self._clock())

  def progress(self, run: Run, event: Mapping[str, Any]) -> None:
    """Called when the worker has reported a step, a phase between steps, or a note to print."""
    if 'note' in event:
      self._print(f'{run.label}: {event["note"]}')
    elif 'step' in event:
      self._running[run] = dataclasses.replace(self._running[run], step=event, phase={})
    else:
      self._running[run] = dataclasses.replace(self._running[run], phase=event)

  def print_due_lines(self) -> None:
    """Prints a line about each run whose last line was printed an interval ago; see FIRST_INTERVAL."""
    now = self._clock()
    for run, progress in list(self._running.items()):
      if now - progress.last_line >= min(max(FIRST_INTERVAL, progress.last_line - progress.started), LAST_INTERVAL):
        self._running[run] = dataclasses.replace(progress, last_line=now)
        self._print(f'{run.label}: {progress.line}')

  def _print_until_closed(self) -> None:
    while not self._closed.wait(1.0):
      self.print_due_lines()

  def ended(self, run: Run, status: str) -> None:
    """Called when the run has a result."""
    last = self._running.pop(run)
    self._done += 1
    count = f'({self._done} of {self._total}{self._time_left()})'
    self._print(f'{run.label}: {status.replace("_", " ")}{last.format_loss(", training loss ")} {count}')

  def stopping(self) -> None:
    """Called when the workers have been sent a stop signal."""
    self._print('stopping: each run finishes its step and saves a checkpoint (press Ctrl-C again to quit at once)')

  def stopped(self, run: Run, saved: bool) -> None:
    """Called when the run has been stopped.

    Args:
      run: the run.
      saved: whether its worker has saved a checkpoint; if not, the run will repeat the steps since the last one.
    """
    last = self._running.pop(run)
    at = f' after step {last.step["step"]}' if last.step else ''
    self._print(f'{run.label}: stopped{at}{"" if saved else ", not saved: it resumes from its last checkpoint"}')

  def failed(self, run: Run, error: str, log: Path | None, start: int = 0) -> None:
    """Called when the run has ended without a result.

    Args:
      run: the run.
      error: the cause, in one line.
      log: the log file to quote; None if it does not show the cause.
      start: the size of the log file in bytes when the run was started.
    """
    self._running.pop(run, None)
    self._print(f'{run.label}: FAILED: {error}')
    if log is None:
      return
    text = log.read_bytes()[start:].decode('utf8', errors='replace') if log.exists() else ''
    for line in text.splitlines()[-LOG_LINES:]:
      self._print(f'  {line}')
    if text:
      self._print(f'  (full log: {log}; run the same command again to repeat only this run)')
    else:
      self._print('  (it wrote nothing to its log; run the same command again to repeat only this run)')

  def _print(self, line: str) -> None:
    self._console.print(line, markup=False, highlight=False, soft_wrap=True)

  def _time_left(self) -> str:
    """Formats the estimated time left, based on the ended runs and the completed fractions of the others."""
    steps = [progress.step for progress in self._running.values() if progress.step]
    fractions = sum(step['step'] / step['steps'] for step in steps)
    runs_done = self._done - self._finished_before + fractions
    if not runs_done or self._done == self._total:
      return ''
    seconds = (self._clock() - self._started) / runs_done * (self._total - self._finished_before - runs_done)
    return f', about {seconds / 60:.0f} min left' if seconds > 90 else f', about {seconds:.0f} s left'

  def _table(self) -> Table:
    table = Table(box=None, title=f'{self._done} of {self._total} runs done{self._time_left()}', title_justify='left')
    for name in ('run', 'step', '', 'loss', 'tokens/s'):
      table.add_column(name, justify='left' if name in ('run', '') else 'right')
    for run, progress in list(self._running.items()):
      speed, done = progress.step.get('tokens_per_second'), progress.done_and_total
      table.add_row(
        run.label,
        progress.short_text,
        ProgressBar(total=done[1], completed=done[0], width=20) if done else '',
        (progress.format_loss() or '-') if progress.step else '',
        '' if speed is None else f'{speed:,.0f}',
      )
    return table
