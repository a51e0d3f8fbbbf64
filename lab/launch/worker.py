"""A worker process: reads runs from stdin, one JSON object a line, trains each, and reports on --events.

  {"directory": ..., "config": {...}, "labels": {...}}
                                       ->  {"step": 10, "steps": 300, "loss": ..., "tokens_per_second": ...} ...
                                           {"ended": "completed"}  or  {"failed": "OutOfMemory: ..."}
                                           or, after SIGTERM, SIGHUP or SIGUSR2, once all is saved,  {"stopped": true}

Whatever a run prints goes to log.txt in its directory. Started by lab/launch/worker_pool.py, once for many runs, or,
where several processes train a run together, for one.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from lab.cli import start_up

if __name__ == '__main__':
  start_up.prepare_worker()  # before anything imports JAX

from absl import app, flags, logging

from lab.cli import signals
from lab.launch import failure_causes, parent_watch, processes
from training.cache import keep_compiled_programs
from training.config import Config, ConfigError
from training.files import SaveFailed
from training.loop import Stopped, train
from training.memory import run_inline
from training.run_files.locks import Moved

KNOWN = (ConfigError, SaveFailed, Moved, OSError)  # a person is told what to do

EVENTS = flags.DEFINE_integer('events', None, 'The open file descriptor to report on. Default: that of stdout.')
PARENT = flags.DEFINE_integer('parent', None, 'The process that has this one end when it ends. Default: none.')
CORE = flags.DEFINE_integer('core', None, 'The one core to run on. Default: all.')


def main(argv: list[str]) -> None:
  """Serves runs until stdin ends."""
  del argv
  told_to_stop = threading.Event()
  for number in {*signals.caught(), signal.SIGUSR2} - {signal.SIGINT}:  # Slurm sends SIGUSR2 to every process of a job
    signal.signal(number, lambda number, frame: told_to_stop.set())
  logging.set_verbosity(logging.WARNING)  # orbax tells of every file
  if CORE.value is not None and hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, {CORE.value})  # before JAX counts the cores
  run_inline()
  with os.fdopen(os.dup(1) if EVENTS.value is None else EVENTS.value, 'w', buffering=1) as events:

    def tell(event: dict[str, Any]) -> None:
      try:
        events.write(json.dumps(event) + '\n')
      except BrokenPipeError:  # nobody listens any more, which is no reason to stop
        _redirect(os.devnull, events.fileno())

    together, stop = processes.named_by_flags() or processes.ALONE, told_to_stop.is_set
    within = parent_watch.WITHIN if together.count == 1 else processes.HEARTBEAT
    watch = parent_watch.Watch(PARENT.value, within) if PARENT.value else None
    for line in sys.stdin:
      job = json.loads(line)
      directory = Path(job['directory'])
      try:
        _log_to(directory / together.log)
        keep_compiled_programs()
        if together.count > 1 and not told_to_stop.is_set():
          stop = processes.join(together)
        result = train(
          Config.from_flat(job['config']), directory, job['labels'], tell, watch.over(stop) if watch else stop
        )
        tell({'ended': result['status']})
      except Stopped:
        tell({'stopped': True})
      except Exception as error:  # whatever it is, it is this run's end alone
        failure = _log_failure(error, directory)
        if together.count > 1 and not isinstance(error, KNOWN):
          time.sleep(processes.HEARTBEAT + 10)  # it may come of another's end: then the runtime says whose, and aborts
        tell({'failed': failure})
        if together.count > 1:
          os._exit(1)  # not in order, which would wait for the others, who may be waiting for this one


def _log_failure(error: Exception, directory: Path) -> str:
  """What a person is told: of a mistake or a full disk what to do; of anything else its name, and the log has all."""
  if isinstance(error, OSError):
    error = SaveFailed(error.filename or directory, error)
  known = isinstance(error, (ConfigError, SaveFailed, Moved))
  with contextlib.suppress(OSError):  # the log may lie on a full disk
    print(error, file=sys.stderr) if known else traceback.print_exception(error)
  return str(error) if known else failure_causes.of_error(error)


def _log_to(path: Path) -> None:
  """Sends what this process prints, and what its libraries write past Python, to a file."""
  path.parent.mkdir(parents=True, exist_ok=True)
  sys.stdout.flush()
  sys.stderr.flush()
  _redirect(path, 1, 2)


def _redirect(path: str | Path, *descriptors: int) -> None:
  with open(path, 'ab') as file:
    for descriptor in descriptors:
      os.dup2(file.fileno(), descriptor)


if __name__ == '__main__':
  app.run(main)
