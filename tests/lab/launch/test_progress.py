"""The progress display, in a terminal and in a file."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from lab.core.run import Run
from lab.launch.progress import ProgressDisplay
from training.config import Config

RUN, OTHER = (Run('block', 'baseline', seed, Config(), Path('runs')) for seed in (0, 1))
STEP = {'step': 120, 'steps': 300, 'loss': 2.3456, 'tokens_per_second': 45_000.4}
EVENTS = [
  ({'doing': 'compiling'}, 'compiling', 'compiling'),
  (STEP, '120/300', 'training, step 120/300, loss 2.346'),
  ({**STEP, 'loss': None}, '120/300', 'training, step 120/300'),
  (
    {'evaluating': 'validation', 'done': 65_536, 'of': 524_288},
    'evaluating: validation', 'evaluating: validation, 65,536 of 524,288 tokens',
  ),
  ({'doing': 'saving'}, 'saving', 'saving'),
]  # fmt: skip


class Clock:
  def __init__(self):
    self.now = 100.0

  def __call__(self) -> float:
    return self.now


def display_on(file: io.StringIO, terminal: bool = False) -> tuple[ProgressDisplay, Clock]:
  clock = Clock()
  return ProgressDisplay(Console(file=file, width=100, force_terminal=terminal), 2, 0, clock), clock


@pytest.mark.parametrize(('event', 'row', 'line'), EVENTS)
def test_every_phase_of_a_run_is_shown(event, row, line):
  file = io.StringIO()
  display, clock = display_on(file)
  display.started(RUN)
  display.progress(RUN, event)
  Console(file=file, width=100).print(display._table())
  assert row in file.getvalue()
  clock.now += 11
  display.print_due_lines()
  assert file.getvalue().endswith(f'block/baseline/seed_0: {line}\n')


def test_the_progress_bar_shows_the_current_phase():
  file = io.StringIO()
  display, _ = display_on(file)
  display.started(RUN)
  bars = []
  for event, *_ in EVENTS:
    display.progress(RUN, event)
    bars.append(display._running[RUN].done_and_total)
  assert bars == [None, (120, 300), (120, 300), (65_536, 524_288), None]


def test_the_intervals_between_the_lines_of_a_run_double():
  file = io.StringIO()
  display, clock = display_on(file)
  display.started(RUN)
  printed_at = []
  for second in range(1, 3001):
    clock.now = 100 + second
    before = len(file.getvalue())
    display.print_due_lines()
    if len(file.getvalue()) > before:
      printed_at.append(second)
  assert printed_at == [10, 20, 40, 80, 160, 320, *range(620, 3001, 300)]


def test_the_time_left_counts_the_steps_of_a_run_that_evaluates():
  """One run ends while the other, which is at step 120, evaluates."""
  file = io.StringIO()
  display, clock = display_on(file)
  for run in (RUN, OTHER):
    display.started(run)
    display.progress(run, STEP)
  display.progress(OTHER, {'evaluating': 'test', 'done': 1, 'of': 2})
  clock.now += 70
  display.ended(RUN, 'failed_to_learn')
  assert file.getvalue() == 'block/baseline/seed_0: failed to learn, training loss 2.346 (1 of 2, about 30 s left)\n'
  display.stopped(OTHER, saved=True)
  assert file.getvalue().endswith('block/baseline/seed_1: stopped after step 120\n')


def test_a_run_may_end_before_its_first_logged_step():
  file = io.StringIO()
  display, _ = display_on(file)
  display.started(RUN)
  display.started(OTHER)
  display.progress(RUN, {'doing': 'evaluating'})
  display.ended(RUN, 'completed')
  display.stopped(OTHER, saved=False)
  assert 'block/baseline/seed_0: completed (1 of 2' in file.getvalue()
  assert 'block/baseline/seed_1: stopped, not saved' in file.getvalue()


@pytest.mark.parametrize('terminal', [True, False])
def test_the_printing_thread_ends_with_the_context(terminal):
  display, _ = display_on(io.StringIO(), terminal)
  with display:
    display.started(RUN)
  assert not display._printer.is_alive()
