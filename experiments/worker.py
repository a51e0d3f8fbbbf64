"""A worker process: reads runs from stdin, one JSON object a line, trains each, and tells of it on stdout.

  {"directory": ..., "config": {...}, "labels": {...}}
                                       ->  {"step": 10, "steps": 300, "loss": ..., "tokens_per_second": ...} ...
                                           {"ended": "completed"}  or  {"failed": "OutOfMemory: ..."}
                                           or, after a SIGTERM, once all is saved,  {"stopped": true}

Whatever a run prints goes to log.txt in its directory. Started by experiments/sweep.py, once for many runs.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from training.cache import keep_compiled_programs
from training.config import Config, ConfigError
from training.loop import Stopped, train

CORE = flags.DEFINE_integer('core', None, 'The one core to run on. Default: all.')


def main(argv: list[str]) -> None:
  """Serves runs until stdin ends."""
  del argv
  told_to_stop = threading.Event()
  signal.signal(signal.SIGTERM, lambda number, frame: told_to_stop.set())
  logging.set_verbosity(logging.WARNING)  # orbax tells of every file
  if CORE.value is not None and hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, {CORE.value})  # before JAX counts the cores
  with os.fdopen(os.dup(sys.stdout.fileno()), 'w', buffering=1) as events:

    def tell(event: dict[str, Any]) -> None:
      events.write(json.dumps(event) + '\n')

    for line in sys.stdin:
      job = json.loads(line)
      directory = Path(job['directory'])
      try:
        _log_to(directory / 'log.txt')
        keep_compiled_programs()
        result = train(Config.from_flat(job['config']), directory, job['labels'], tell, told_to_stop.is_set)
        tell({'ended': result['status']})
      except Stopped:
        tell({'stopped': True})
      except ConfigError as error:
        print(error, file=sys.stderr)
        tell({'failed': str(error)})
      except Exception as error:  # whatever it is, it is this run's end alone: the log has it whole
        with contextlib.suppress(OSError):  # but for a full disk
          traceback.print_exc()
        tell({'failed': f'{type(error).__name__}: {error}'.splitlines()[0]})


def _log_to(path: Path) -> None:
  """Sends what this process prints, and what its libraries write past Python, to a file."""
  path.parent.mkdir(parents=True, exist_ok=True)
  sys.stdout.flush()
  sys.stderr.flush()
  with path.open('ab') as file:
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)


if __name__ == '__main__':
  app.run(main)
