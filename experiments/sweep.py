"""Runs in worker processes: each trains one run at a time, and what kills it fails that run alone."""

import asyncio
import contextlib
import json
import os
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from experiments.display import Display
from experiments.machine import Place
from experiments.plan import Run
from training import run_directory

PROJECT = Path(__file__).parent.parent
LOG_LINES = 8  # of a failed run, shown


def unfinished(runs: Sequence[Run]) -> list[Run]:
  """The runs that have no result yet."""
  return [run for run in runs if run_directory.read_result(run.directory) is None]


def execute(runs: Sequence[Run], places: Sequence[Place], display: Display) -> list[Run]:
  """Trains the runs, one worker for each place, and returns those that failed.

  A run's numbers do not depend on which worker has it, nor on how many there are. On interruption the workers are
  stopped; what their runs have saved is gone on from next time.
  """
  return asyncio.run(_execute(deque(runs), places, display))


async def _execute(waiting: deque[Run], places: Sequence[Place], display: Display) -> list[Run]:
  failed: list[Run] = []
  used = places[: len(waiting)]
  await asyncio.gather(*(_serve(waiting, place, display, failed) for place in used))
  return failed


async def _serve(waiting: deque[Run], place: Place, display: Display, failed: list[Run]) -> None:
  """Gives a worker runs until there are none; a worker that died is replaced for the next run."""
  worker = None
  try:
    while waiting:
      run = waiting.popleft()
      if worker is None:
        worker = await _start(place)
      error = await _train(worker, run, display)
      if error is not None:
        failed.append(run)
        display.failed(run, error, _last_lines(run.directory / 'log.txt'))
      if worker.returncode is not None:
        worker = None
  finally:
    if worker is not None:
      await _stop(worker)


async def _start(place: Place) -> asyncio.subprocess.Process:
  path = [str(PROJECT), *filter(None, [os.environ.get('PYTHONPATH')])]
  core = [] if place.core is None else [f'--core={place.core}']
  return await asyncio.create_subprocess_exec(
    sys.executable, '-P', '-m', 'experiments.worker', *core,  # -P: what lies in the user's folder is not ours
    env=os.environ | {'PYTHONPATH': os.pathsep.join(path)} | place.environment,
    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
  )  # fmt: skip


async def _stop(worker: asyncio.subprocess.Process) -> None:
  with contextlib.suppress(ProcessLookupError):
    worker.terminate()
  await worker.wait()


async def _train(worker: asyncio.subprocess.Process, run: Run, display: Display) -> str | None:
  """Has a worker train a run; what went wrong, or None."""
  assert worker.stdin is not None
  assert worker.stdout is not None
  labels = {'experiment': run.experiment, 'variant': run.variant, 'seed': run.seed}
  job = {'directory': str(run.directory.absolute()), 'config': run.config.to_flat(), 'labels': labels}
  display.started(run)
  with contextlib.suppress(ConnectionError):  # a worker that died has no more to say: see below
    worker.stdin.write(json.dumps(job).encode() + b'\n')
    await worker.stdin.drain()
  while line := await worker.stdout.readline():
    event = json.loads(line)
    if 'failed' in event:
      return event['failed']
    if 'ended' in event:
      display.ended(run, event['ended'])
      return None
    display.progress(run, event)
  code = await worker.wait()
  return f'its process was killed by signal {-code}' if code < 0 else f'its process ended with code {code}'


def _last_lines(log: Path) -> list[str]:
  return log.read_text('utf8', errors='replace').splitlines()[-LOG_LINES:] if log.exists() else []
