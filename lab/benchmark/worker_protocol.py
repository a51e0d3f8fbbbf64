"""The protocol of a benchmark worker: it reads numbers of iterations, and writes the time that they took.

  {"compile_seconds": ...}   once it is ready: a JSON object of facts about the program
  0.512                      for each line on stdin, a number of iterations: the seconds they took
  987654321                  when stdin ends: the peak memory of the process in bytes

Each line begins with PREFIX, since libraries may print other lines when Python starts.

This file imports only the standard library, so that a PyTorch worker does not load JAX.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PREFIX = 'blocklab: '


def serve(iterate: Callable[[int], None], facts: dict[str, Any]) -> None:
  """Answers requests until stdin ends. Other output of the process is redirected to stderr.

  Args:
    iterate: a function that runs this many iterations, and returns when the device has finished.
    facts: the JSON object to write first.
  """
  with os.fdopen(os.dup(1), 'w', buffering=1) as answers:
    os.dup2(2, 1)
    answers.write(f'\n{PREFIX}{json.dumps(facts)}\n')  # earlier output may have ended without a newline
    for line in sys.stdin:
      started = time.perf_counter()
      iterate(int(line))
      answers.write(f'{PREFIX}{time.perf_counter() - started}\n')
    answers.write(f'{PREFIX}{peak_memory()}\n')


def peak_memory() -> int:
  """The peak memory of this process in bytes. On Linux, getrusage would include that of the process that forked it."""
  status = Path('/proc/self/status')
  if status.exists():
    return 1024 * int(status.read_text().partition('VmHWM:')[2].split()[0])
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def pin_to_core(core: int | None) -> int:
  """Restricts this process to one core, unless `core` is None, and returns the number of cores that it may use."""
  if not hasattr(os, 'sched_setaffinity'):
    return os.cpu_count() or 1
  if core is not None:
    os.sched_setaffinity(0, {core})
  return len(os.sched_getaffinity(0))
