"""Stops a worker when the command that started it has exited.

A command that is killed (by SIGKILL, by the system for lack of memory, by a crash) cannot stop its workers, so each
worker watches its parent process. A worker that is training then stops as it does on SIGTERM: it finishes its step and
saves a checkpoint. A worker that is compiling or evaluating exits at once, since its next step may be a minute away;
its earlier checkpoints are intact.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

POLL_INTERVAL = 0.1  # seconds between checks of the parent
STOP_CHECK_WITHIN = 1.0  # seconds within which a training worker checks whether to stop, or two steps if longer
SAVE_WITHIN = 60.0  # seconds to save the last checkpoint
ORPHANED = 75  # the exit code EX_TEMPFAIL: another attempt may succeed


class ParentWatch:
  """Watches the parent process from a thread, and stops this process when the parent has exited.

  Args:
    parent: the id of the parent process.
    within: seconds within which a training loop checks whether to stop, even if its steps are shorter.
  """

  def __init__(self, parent: int, within: float = STOP_CHECK_WITHIN):
    self._parent, self._within = parent, within
    self._last_check, self._step_seconds = time.monotonic(), 0.0
    self._stopping = threading.Event()
    threading.Thread(target=self._watch, daemon=True, name='parent watch').start()

  def wrap(self, should_stop: Callable[[], bool]) -> Callable[[], bool]:
    """Wraps the function that a training loop calls after every step to check whether to stop.

    Args:
      should_stop: the function; it must return True after a SIGTERM.
    """

    def watched() -> bool:
      now = time.monotonic()
      self._last_check, self._step_seconds = now, now - self._last_check
      if should_stop():
        self._stopping.set()
        return True
      return False

    return watched

  def _watch(self) -> None:
    while os.getppid() == self._parent:
      time.sleep(POLL_INTERVAL)
    print('the command that started this worker has exited: saving and exiting', file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    if self._stopping.wait(max(self._within, 2 * self._step_seconds)):
      time.sleep(SAVE_WITHIN)  # the process exits before this ends, unless the save hangs
    os._exit(ORPHANED)
