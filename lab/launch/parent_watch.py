"""A worker outlives its command by no more than it needs to save: nobody would tell it to stop, nor read what it says.

Whoever is killed alone (SIGKILL, an out-of-memory killer, a crash) cannot tell its workers. So each one watches over
its parent. While it trains it stops as at SIGTERM, after its step, and saves. While it compiles or evaluates there may
be a minute to the next step, and it ends where it stands: what was saved before is whole.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

INTERVAL = 0.1  # seconds between two looks at the parent
WITHIN = 1.0  # seconds, or two steps, in which a worker that trains asks whether to stop
SAVE_WITHIN = 60.0  # seconds
ORPHANED = 75  # the exit code: another try may succeed


class Watch:
  """Watches over the process that started this one, from a thread.

  Args:
    parent: its id.
    within: seconds in which a training loop asks whether to stop, however short its steps are.
  """

  def __init__(self, parent: int, within: float = WITHIN):
    self._parent, self._within = parent, within
    self._asked, self._step_seconds = time.monotonic(), 0.0
    self._stopping = threading.Event()
    threading.Thread(target=self._watch, daemon=True, name='parent watch').start()

  def over(self, stop: Callable[[], bool]) -> Callable[[], bool]:
    """`stop`, which a training loop asks after every step and which is true after a SIGTERM, asked under this watch."""

    def watched() -> bool:
      now = time.monotonic()
      self._asked, self._step_seconds = now, now - self._asked
      if stop():
        self._stopping.set()
        return True
      return False

    return watched

  def _watch(self) -> None:
    while os.getppid() == self._parent:
      time.sleep(INTERVAL)
    print('the command that started this worker is gone: saving, and ending', file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    if self._stopping.wait(max(self._within, 2 * self._step_seconds)):
      time.sleep(SAVE_WITHIN)  # the process ends before, unless the save hangs
    os._exit(ORPHANED)
