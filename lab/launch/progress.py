"""What a person sees while runs train: a live table in a terminal, plain lines elsewhere."""

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

LOG_LINES = 8  # of a failed run, shown
FIRST_LINE, LAST_LINES = 10.0, 300.0  # seconds between the lines on a run, without a terminal: at first, and at most


@dataclasses.dataclass
class Activity:
  """What a run does.

  Attributes:
    started: when a worker took it.
    told: when a line was last printed on it.
    step: the last step that it logged: {'step', 'steps', 'loss', 'tokens_per_second'}; empty before.
    between: what it does between steps: {'doing'} or {'evaluating', 'done', 'of'}; empty while it trains.
  """

  started: float
  told: float
  step: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  between: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def words(self) -> str:
    """What it does, short enough for a table."""
    if 'evaluating' in self.between:
      return f'evaluating: {self.between["evaluating"]}'
    if self.between or not self.step:
      return self.between.get('doing', 'starting')
    return f'{self.step["step"]}/{self.step["steps"]}'

  @property
  def share(self) -> tuple[int, int] | None:
    """How much of how much is done of it; None where that is not known."""
    if 'evaluating' in self.between:
      return self.between['done'], self.between['of']
    return (self.step['step'], self.step['steps']) if self.step and not self.between else None

  @property
  def sentence(self) -> str:
    """A line on it."""
    if 'evaluating' in self.between:
      return f'{self.words}, {self.between["done"]:,} of {self.between["of"]:,} tokens'
    return self.words if self.between or not self.step else f'training, step {self.words}{self.loss(", loss ")}'

  def loss(self, before: str = '') -> str:
    """The training loss at the last logged step; empty where there is none."""
    loss = self.step.get('loss')
    return '' if loss is None else f'{before}{loss:.3f}'


class Display:
  """Told of each run's start, progress and end. A context manager: the live table is there inside it.

  Without a terminal, what ends or fails is a line, and what lasts has one now and then: after 10 seconds, 20, 40, ...,
  and at least every 5 minutes.
  """

  def __init__(self, console: Console, total: int, finished: int, clock: Callable[[], float] = time.monotonic):
    self._console, self._total, self._done = console, total, finished
    self._finished_before, self._clock, self._started = finished, clock, clock()
    self._running: dict[Run, Activity] = {}
    self._live = (
      Live(console=console, refresh_per_second=4, get_renderable=self._table) if console.is_terminal else None
    )
    self._closed, self._lines = threading.Event(), threading.Thread(target=self._tell_now_and_then, daemon=True)

  def __enter__(self) -> 'Display':
    self._live.start() if self._live else self._lines.start()
    return self

  def __exit__(self, *exception) -> None:
    if self._live:
      self._live.stop()
    else:
      self._closed.set()
      self._lines.join()

  def started(self, run: Run) -> None:
    """A worker has taken the run."""
    self._running[run] = Activity(self._clock(), self._clock())

  def progress(self, run: Run, event: Mapping[str, Any]) -> None:
    """The run has logged a step, does something else, or has something to say."""
    if 'note' in event:
      self._say(f'{run.label}: {event["note"]}')
    elif 'step' in event:
      self._running[run] = dataclasses.replace(self._running[run], step=event, between={})
    else:
      self._running[run] = dataclasses.replace(self._running[run], between=event)

  def tell(self) -> None:
    """Prints a line on each run that has lasted since the last one; see FIRST_LINE."""
    now = self._clock()
    for run, activity in list(self._running.items()):
      if now - activity.told >= min(max(FIRST_LINE, activity.told - activity.started), LAST_LINES):
        self._running[run] = dataclasses.replace(activity, told=now)
        self._say(f'{run.label}: {activity.sentence}')

  def _tell_now_and_then(self) -> None:
    while not self._closed.wait(1.0):
      self.tell()

  def ended(self, run: Run, status: str) -> None:
    """The run has its result."""
    last = self._running.pop(run)
    self._done += 1
    progress = f'({self._done} of {self._total}{self._left()})'
    self._say(f'{run.label}: {status.replace("_", " ")}{last.loss(", training loss ")} {progress}')

  def stopping(self) -> None:
    """The workers have been told to stop."""
    self._say('stopping: each run finishes its step and saves (a second Ctrl-C quits at once)')

  def stopped(self, run: Run, saved: bool) -> None:
    """The run has been stopped; if its worker could not save what it did, its next start does that again."""
    last = self._running.pop(run)
    at = f' after step {last.step["step"]}' if last.step else ''
    self._say(f'{run.label}: stopped{at}{"" if saved else ", not saved: it resumes from its last checkpoint"}')

  def failed(self, run: Run, error: str, log: Path | None, start: int = 0) -> None:
    """The run has ended without a result; its log, if there is one that says why, is quoted from byte `start` on."""
    self._running.pop(run, None)
    self._say(f'{run.label}: FAILED: {error}')
    if log is None:
      return
    said = log.read_bytes()[start:].decode('utf8', errors='replace') if log.exists() else ''
    for line in said.splitlines()[-LOG_LINES:]:
      self._say(f'  {line}')
    if said:
      self._say(f'  (all of it in {log}; the same command again repeats this run alone)')
    else:
      self._say('  (its log says nothing; the same command again repeats this run alone)')

  def _say(self, line: str) -> None:
    self._console.print(line, markup=False, highlight=False, soft_wrap=True)

  def _left(self) -> str:
    """The time left, from the runs that ended so far and the shares of those under way."""
    steps = [activity.step for activity in self._running.values() if activity.step]
    shares = sum(step['step'] / step['steps'] for step in steps)
    worth = self._done - self._finished_before + shares
    if not worth or self._done == self._total:
      return ''
    seconds = (self._clock() - self._started) / worth * (self._total - self._finished_before - worth)
    return f', about {seconds / 60:.0f} min left' if seconds > 90 else f', about {seconds:.0f} s left'

  def _table(self) -> Table:
    table = Table(box=None, title=f'{self._done} of {self._total} runs done{self._left()}', title_justify='left')
    for name in ('run', 'step', '', 'loss', 'tokens/s'):
      table.add_column(name, justify='left' if name in ('run', '') else 'right')
    for run, activity in list(self._running.items()):
      speed, share = activity.step.get('tokens_per_second'), activity.share
      table.add_row(
        run.label,
        activity.words,
        ProgressBar(total=share[1], completed=share[0], width=20) if share else '',
        (activity.loss() or '-') if activity.step else '',
        '' if speed is None else f'{speed:,.0f}',
      )
    return table
