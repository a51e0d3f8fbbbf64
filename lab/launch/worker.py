"""A worker process: reads runs from stdin, one JSON object per line, trains each, and reports events to --events.

  {"directory": ..., "config": {...}, "labels": {...}}
                                       ->  {"step": 10, "steps": 300, "loss": ..., "tokens_per_second": ...} ...
                                           {"ended": "completed"}  or  {"failed": "OutOfMemory: ..."}
                                           or, after SIGTERM, SIGHUP or SIGUSR2, once it has saved,  {"stopped": true}

The output of a run goes to log.txt in its directory. lab/launch/worker_pool.py starts a worker for many runs, or for
one run if several processes train it.
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

from lab.cli import startup

if __name__ == '__main__':
  startup.prepare_worker()  # before anything imports JAX

from absl import app, flags, logging

from lab.cli import signals
from lab.launch import distributed, failure_causes
from lab.launch.parent_watch import STOP_CHECK_WITHIN, ParentWatch
from lab.launch.process_group import SINGLE_PROCESS
from training import ideas
from training.cache import enable_compilation_cache
from training.config import Config, ConfigError
from training.files import SaveFailed
from training.loop import Stopped, train
from training.memory import disable_async_dispatch
from training.run_files.locks import Moved

EXPLAINED = (ConfigError, SaveFailed, Moved)  # exceptions whose message tells the user what to do

EVENTS = flags.DEFINE_integer('events', None, 'The open file descriptor to write events to. Default: stdout.')
PARENT = flags.DEFINE_integer('parent', None, 'The process id of the parent; exit when it has exited. Default: none.')
CORE = flags.DEFINE_integer('core', None, 'The CPU core to run on. Default: all cores.')


def main(argv: list[str]) -> None:
  """Trains runs until stdin is closed."""
  del argv
  stop_requested = threading.Event()
  # Slurm sends SIGUSR2 to every process of a job.
  for number in {*signals.stop_signals(), signal.SIGUSR2} - {signal.SIGINT}:
    signal.signal(number, lambda number, frame: stop_requested.set())
  logging.set_verbosity(logging.WARNING)  # orbax logs every file
  if CORE.value is not None and hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, {CORE.value})  # before JAX counts the cores
  disable_async_dispatch()
  with os.fdopen(os.dup(1) if EVENTS.value is None else EVENTS.value, 'w', buffering=1) as events:

    def report(event: dict[str, Any]) -> None:
      try:
        events.write(json.dumps(event) + '\n')
      except BrokenPipeError:  # the command has exited; ParentWatch decides when to stop
        _redirect(os.devnull, events.fileno())

    group, should_stop = distributed.from_flags() or SINGLE_PROCESS, stop_requested.is_set
    stop_check_within = STOP_CHECK_WITHIN if group.count == 1 else distributed.HEARTBEAT_TIMEOUT
    watch = ParentWatch(PARENT.value, stop_check_within) if PARENT.value else None
    for line in sys.stdin:
      job = json.loads(line)
      directory = Path(job['directory'])
      try:
        _log_to(directory / group.log_name)
        enable_compilation_cache()
        if group.count > 1 and not stop_requested.is_set():
          should_stop = distributed.join(group)
        watched = watch.wrap(should_stop) if watch else should_stop
        ideas.load_named(Config.from_flat(job['config']).model)  # the user's command has executed this file too
        result = train(Config.from_flat(job['config']), directory, job['labels'], report, watched)
        report({'ended': result['status']})
      except Stopped:
        report({'stopped': True})
      except Exception as error:  # any exception fails only this run
        failure = _log_failure(error, directory)
        if group.count > 1 and not isinstance(error, (*EXPLAINED, OSError)):
          # If another process is the cause, the runtime aborts this one during the wait and logs which was lost.
          time.sleep(distributed.HEARTBEAT_TIMEOUT + 10)
        report({'failed': failure})
        if group.count > 1:
          os._exit(1)  # a normal exit would wait for the other processes, which may be waiting for this one


def _log_failure(error: Exception, directory: Path) -> str:
  """Logs why a run failed, with the traceback of an unexpected exception, and returns the reason in one line."""
  if isinstance(error, OSError):
    error = SaveFailed(error.filename or directory, error)
  explained = isinstance(error, EXPLAINED)
  with contextlib.suppress(OSError):  # the log may be on a full disk
    print(error, file=sys.stderr) if explained else traceback.print_exception(error)
  return str(error) if explained else failure_causes.describe_error(error)


def _log_to(path: Path) -> None:
  """Redirects stdout and stderr to a file, including what libraries write without going through Python."""
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
