"""The side of a racer: it takes steps when it is told how many, and says how long they took.

  {"parameters": ...}        once it is ready, whatever there is to say of it
  0.512                      for each line with a number of steps on stdin: seconds
  987654321                  at the end of stdin: the most memory that the process had, in bytes

Each is a line that begins with ANSWER, since anything may be printed as Python starts.

This file imports nothing but what Python has, so that what is measured has its own libraries alone.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ANSWER = 'blocklab: '


def serve(take_steps: Callable[[int], None], about: dict[str, Any]) -> None:
  """Serves until stdin ends; what libraries print goes to stderr."""
  with os.fdopen(os.dup(1), 'w', buffering=1) as answers:
    os.dup2(2, 1)
    answers.write(f'\n{ANSWER}{json.dumps(about)}\n')  # what was printed before may have left its line open
    for line in sys.stdin:
      started = time.perf_counter()
      take_steps(int(line))
      answers.write(f'{ANSWER}{time.perf_counter() - started}\n')
    answers.write(f'{ANSWER}{peak_memory()}\n')


def peak_memory() -> int:
  """The most bytes that this process had. On Linux getrusage would count those of the one that started it."""
  status = Path('/proc/self/status')
  if status.exists():
    return 1024 * int(status.read_text().partition('VmHWM:')[2].split()[0])
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def pin(core: int | None) -> int:
  """Keeps this process to one core, if one is given, and returns how many it has."""
  if not hasattr(os, 'sched_setaffinity'):
    return os.cpu_count() or 1
  if core is not None:
    os.sched_setaffinity(0, {core})
  return len(os.sched_getaffinity(0))
