"""Runs in worker processes: each trains one run at a time, and what kills it fails that run alone."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lab.cli import signals
from lab.core.run import Run
from lab.launch import failure_causes
from lab.launch.devices import Place
from lab.launch.processes import ALONE, Processes, verdict
from lab.launch.progress import Display
from training.code_version import PROJECT
from training.config import ConfigError
from training.files import SaveFailed
from training.run_files import locks, run_directory

GRACE = 10.0  # seconds
END_WITHIN = 60.0  # seconds for a worker that has no more to do
KILLED_WITHIN = 5.0  # seconds for one that was killed
SILENCE = 600.0  # seconds without a word from a worker, after which a line says so
GRACE_TOGETHER = 30.0  # where several processes agree on a step to stop at


class Failure(NamedTuple):
  """What a person is told of a run that failed, where in its log this attempt begins, and whether it says more."""

  what: str
  log_start: int
  in_log: bool = True


class Outcome(NamedTuple):
  """How a sweep ended: the runs that failed, and whether it was stopped before its end."""

  failed: list[Run]
  stopped: bool


def unfinished(runs: Sequence[Run]) -> list[Run]:
  """The runs that have no result yet."""
  return [run for run in runs if not run_directory.is_finished(run.directory, run.config)]


@contextlib.contextmanager
def claimed(runs: Sequence[Run]) -> Iterator[Callable[[], None]]:
  """Keeps other commands off the runs.

  A single run that is extended gets its new number of steps at once, since other processes that train it look; of
  several each gets it when it is begun, so that a stopped sweep leaves the results of the rest as they were.

  Yields:
    What raises locks.Moved if the experiment's folder has been moved or deleted since.

  Raises:
    ConfigError: if another process has one of them.
  """
  with locks.claimed([run.directory for run in runs]) as check:
    if len(runs) == 1:
      run_directory.extend_steps(runs[0].directory, runs[0].config)
    yield check


def execute(
  runs: Sequence[Run],
  places: Sequence[Place],
  display: Display,
  processes: Processes = ALONE,
  grace: float | None = None,
  check: Callable[[], None] = lambda: None,
) -> Outcome:
  """Trains the runs, which are `claimed`, one worker for each place; or, with the workers of other processes, one run.

  A run's numbers do not depend on which worker has it, nor on how many there are. On SIGINT, SIGTERM or SIGHUP each
  worker finishes its step and saves, and no other run is begun; on a second SIGINT all are killed, and SystemExit is
  raised.

  Args:
    runs: to train.
    places: where.
    display: is told of everything.
    processes: that train a run together.
    grace: seconds a worker has to finish its step and save; then it is killed, which costs steps and nothing else.
    check: what `claimed` yields; asked before a run is begun.

  Raises:
    ConfigError: if no worker can be started.
    locks.Moved: if the directory of the experiment has been moved or deleted; the workers have ended then.
  """
  sweep = _Sweep(runs, display, processes, grace or (GRACE if processes is ALONE else GRACE_TOGETHER), check)
  with signals.handlers_kept():
    asyncio.run(sweep.run(places[: len(runs)]))
  if sweep.quitting:
    raise SystemExit(signals.INTERRUPTED)
  if sweep.moved:
    raise sweep.moved
  if sweep.not_started and sweep.waiting and not sweep.stopping:
    raise ConfigError(f'no worker could be started ({sweep.not_started}): {failure_causes.thread_limit()}')
  return Outcome(sweep.failed, sweep.stopping)


class _Sweep:
  """The runs that wait, the workers, and what became of the rest."""

  def __init__(
    self, runs: Sequence[Run], display: Display, processes: Processes, grace: float, check: Callable[[], None]
  ):
    self.waiting, self.display, self.processes, self.grace = deque(runs), display, processes, grace
    self.check = check
    self.moved: locks.Moved | None = None
    self.not_started: Exception | None = None  # why a worker could not be
    self.failed: list[Run] = []
    self.stopping = self.quitting = False
    self._workers: list[asyncio.subprocess.Process] = []
    self._events: dict[asyncio.subprocess.Process, asyncio.StreamReader] = {}  # what each worker reports
    self._pipes: list[asyncio.ReadTransport] = []
    self._starting = asyncio.Lock()  # one at a time, since a signal is blocked meanwhile

  async def run(self, places: Sequence[Place]) -> None:
    loop = asyncio.get_running_loop()
    for (
      number
    ) in signals.caught():  # the loop's own: a handler of Python's may wait until a worker has something to say
      loop.add_signal_handler(number, self._told, number)
    try:
      await asyncio.gather(*(self._serve(place) for place in places))
    finally:
      self._kill()
      for worker in self._workers:
        with contextlib.suppress(TimeoutError):  # one that the kernel holds on to, as in a lost file system
          await asyncio.wait_for(worker.wait(), KILLED_WITHIN)
      for pipe in self._pipes:
        pipe.close()

  def _told(self, number: int) -> None:
    if not self.stopping:
      self._stop()
    elif number == signal.SIGINT:
      self.quitting = True
      self._kill()

  def _stop(self) -> None:
    self.stopping = True
    self.display.stopping()
    for worker in self._workers:
      _send(worker, signal.SIGTERM)
    asyncio.get_running_loop().call_later(self.grace, self._kill)

  def _kill(self) -> None:
    for worker in self._workers:
      _send(worker, signal.SIGKILL)

  async def _serve(self, place: Place) -> None:
    """Gives a worker runs until there are none; a worker that died is replaced for the next run."""
    worker = None
    while self.waiting and not self.stopping:
      try:
        self.check()
        worker = worker or await self._start(place)
      except locks.Moved as error:
        self.moved = error
        self._stop()
        break
      except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not failure_causes.is_of_threads(error):
          raise
        self.not_started = error  # the other workers train what is left
        return
      if not self.waiting:
        break
      run = self.waiting.popleft()
      log = run.directory / self.processes.log
      failure = await self._train(worker, run, log)
      if failure is not None:
        self.failed.append(run)
        there = run.directory.is_dir()
        if there:  # else it has been moved away, and nothing is created in its place
          with contextlib.suppress(OSError):  # the disk may be full, and the run has failed of that
            run_directory.note_failure(run.directory, run_directory.Failure(failure.what, failure.log_start))
        self.display.failed(run, failure.what, log if failure.in_log and there else None, failure.log_start)
      if worker.returncode is not None:
        worker = None
    if worker is not None:
      assert worker.stdin is not None
      worker.stdin.close()  # it ends
      with contextlib.suppress(TimeoutError):  # or hangs, in a thread of a library; it is killed then
        await asyncio.wait_for(worker.wait(), END_WITHIN)

  async def _start(self, place: Place) -> asyncio.subprocess.Process:
    path = [str(PROJECT), *filter(None, [os.environ.get('PYTHONPATH')])]
    own = [] if place.core is None else [f'--core={place.core}']
    own += [] if self.processes is ALONE else self.processes.flags
    async with self._starting:
      with signals.sigint_kept_from_children():
        events, told = os.pipe()  # not stdout, where anything may print as Python starts
        try:
          worker = await asyncio.create_subprocess_exec(
            sys.executable, '-P', '-m', 'lab.launch.worker',  # -P: not the user's modules
            f'--events={told}', f'--parent={os.getpid()}', *own,
            env=os.environ | {'PYTHONPATH': os.pathsep.join(path)} | place.environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, pass_fds=[told],
          )  # fmt: skip
        except BaseException:
          os.close(events)
          raise
        finally:
          os.close(told)
    reader = asyncio.StreamReader()
    pipe = os.fdopen(events, 'rb', buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
      lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    self._events[worker] = reader
    self._pipes.append(transport)
    self._workers.append(worker)
    if self.stopping:
      _send(worker, signal.SIGTERM)
    return worker

  async def _line(self, events: asyncio.StreamReader, run: Run, log: Path) -> bytes:
    """The next line a worker reports; as long as none comes, one is printed now and then that says so."""
    line = asyncio.ensure_future(events.readline())
    while not (await asyncio.wait([line], timeout=SILENCE))[0]:
      note = f'no word from its process for {SILENCE / 60:.0f} minutes: it may take long steps, or hang; see {log}'
      self.display.progress(run, {'note': note})
    return line.result()

  async def _train(self, worker: asyncio.subprocess.Process, run: Run, log: Path) -> Failure | None:
    """Has a worker train a run; what went wrong, or None."""
    assert worker.stdin is not None
    try:
      run_directory.extend_steps(run.directory, run.config)
    except (OSError, SaveFailed, ConfigError) as error:  # the disk may be full, or someone has changed what is there
      return Failure(str(error), 0, in_log=False)
    events = self._events[worker]
    labels = {
      'experiment': run.experiment, 'variant': run.variant, 'seed': run.seed, 'learning_rate_tuned': run.tuned,
    }  # fmt: skip
    job = {'directory': str(run.directory.absolute()), 'config': run.config.to_flat(), 'labels': labels}
    logged, out_of_memory = log.stat().st_size if log.exists() else 0, failure_causes.times_out_of_memory()
    self.display.started(run)
    with contextlib.suppress(ConnectionError):  # a worker that died has no more to say: see below
      worker.stdin.write(json.dumps(job).encode() + b'\n')
      await worker.stdin.drain()
    while line := await self._line(events, run, log):
      event = json.loads(line)
      if 'failed' in event:
        return Failure(event['failed'], logged)
      if 'ended' in event:
        self.display.ended(run, event['ended'])
        return None
      if 'stopped' in event:
        self.display.stopped(run, saved=True)
        if not self.stopping:  # someone has told this worker alone
          self._stop()
        return None
      self.display.progress(run, event)
    code = await worker.wait()
    if self.stopping:
      self.display.stopped(run, saved=False)
      return None
    lost = None if self.processes is ALONE else verdict(log, logged, self.processes)
    if lost:
      return Failure(lost, logged, in_log=False)
    said = log.read_bytes()[logged:].decode('utf8', errors='replace') if log.exists() else ''
    return Failure(failure_causes.of_exit(code, said, failure_causes.times_out_of_memory() > out_of_memory), logged)


def _send(worker: asyncio.subprocess.Process, number: int) -> None:
  if worker.returncode is None:
    with contextlib.suppress(ProcessLookupError):
      worker.send_signal(number)
