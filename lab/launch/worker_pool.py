"""A pool of worker processes. Each worker trains one run at a time; a worker that dies fails only its own run."""

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
from lab.launch.devices import WorkerSlot
from lab.launch.process_group import SINGLE_PROCESS, ProcessGroup
from lab.launch.progress import ProgressDisplay
from lab.launch.runtime_aborts import describe_abort
from training.code_version import PROJECT
from training.config import ConfigError
from training.files import SaveFailed
from training.run_files import locks, run_directory

GRACE_PERIOD = 10.0  # seconds from SIGTERM to SIGKILL
GRACE_PERIOD_OF_GROUP = 30.0  # if several processes have to agree on the step to stop at
EXIT_WITHIN = 60.0  # seconds for a worker to exit once it has no more runs
REAP_WITHIN = 5.0  # seconds for a worker to exit after SIGKILL
SILENCE = 600.0  # seconds without a report from a worker, after which a warning is printed


class Failure(NamedTuple):
  """Why a run failed.

  Attributes:
    message: the cause, in one line.
    log_start: the size of the log file in bytes when this attempt started.
    show_log: whether the end of the log is worth printing.
  """

  message: str
  log_start: int
  show_log: bool = True


class Outcome(NamedTuple):
  """The runs that failed, and whether the pool was stopped before all runs had ended."""

  failed: list[Run]
  stopped: bool


def unfinished(runs: Sequence[Run]) -> list[Run]:
  """The runs that have no result yet."""
  return [run for run in runs if not run_directory.is_finished(run.directory, run.config)]


@contextlib.contextmanager
def claim(runs: Sequence[Run]) -> Iterator[Callable[[], None]]:
  """Prevents other commands from training the runs while the context is open.

  If a single run is extended, its new number of steps is written here, before the other processes of its group read it.
  If there are several runs, each is extended only when a worker starts it, so that the results of the others remain
  valid after an early stop.

  Yields:
    A function that raises locks.Moved if the experiment's folder has been moved or deleted since.

  Raises:
    ConfigError: if another command has claimed one of them.
  """
  with locks.claimed([run.directory for run in runs]) as check:
    if len(runs) == 1:
      run_directory.extend_steps(runs[0].directory, runs[0].config)
    yield check


def execute(
  runs: Sequence[Run],
  slots: Sequence[WorkerSlot],
  display: ProgressDisplay,
  group: ProcessGroup = SINGLE_PROCESS,
  grace: float | None = None,
  check: Callable[[], None] = lambda: None,
) -> Outcome:
  """Trains runs, with one worker in each slot.

  The results of a run do not depend on the worker that trains it, nor on the number of workers. On SIGINT, SIGTERM or
  SIGHUP each worker finishes its step and saves, and no other run is started. On a second SIGINT all workers are
  killed, and SystemExit is raised.

  Args:
    runs: the runs to train; the caller has claimed them.
    slots: the slots of the workers.
    display: shows the progress.
    group: the processes that train a single run together, of which this is one.
    grace: the seconds that a worker has to finish its step and save. After that it is killed, and the run will repeat
      the steps since its last checkpoint.
    check: the function that `claim` yields; called before each run is started.

  Raises:
    ConfigError: if no worker can be started.
    locks.Moved: if the experiment's folder has been moved or deleted; raised after all workers have exited.
  """
  pool = _WorkerPool(
    runs, display, group, grace or (GRACE_PERIOD if group is SINGLE_PROCESS else GRACE_PERIOD_OF_GROUP), check
  )
  with signals.restored_handlers():
    asyncio.run(pool.run(slots[: len(runs)]))
  if pool.quitting:
    raise SystemExit(signals.INTERRUPTED)
  if pool.moved:
    raise pool.moved
  if pool.start_error and pool.waiting and not pool.stopping:
    raise ConfigError(f'no worker could be started ({pool.start_error}): {failure_causes.describe_thread_limit()}')
  return Outcome(pool.failed, pool.stopping)


class _WorkerPool:
  """The waiting runs, the workers, and the state of the pool."""

  def __init__(
    self, runs: Sequence[Run], display: ProgressDisplay, group: ProcessGroup, grace: float, check: Callable[[], None]
  ):
    self.waiting, self.display, self.group, self.grace = deque(runs), display, group, grace
    self.check = check
    self.moved: locks.Moved | None = None
    self.start_error: Exception | None = None  # why a worker could not be started
    self.failed: list[Run] = []
    self.stopping = self.quitting = False
    self._workers: list[asyncio.subprocess.Process] = []
    self._events: dict[asyncio.subprocess.Process, asyncio.StreamReader] = {}  # the reports of each worker
    self._pipes: list[asyncio.ReadTransport] = []
    self._start_lock = asyncio.Lock()  # a signal is blocked while a worker starts, so they start one at a time

  async def run(self, slots: Sequence[WorkerSlot]) -> None:
    loop = asyncio.get_running_loop()
    for number in signals.stop_signals():  # on the loop: handlers of signal.signal may wait until a worker reports
      loop.add_signal_handler(number, self._on_signal, number)
    try:
      await asyncio.gather(*(self._serve(slot) for slot in slots))
    finally:
      self._kill()
      for worker in self._workers:
        with contextlib.suppress(TimeoutError):  # blocked in the kernel, as by a lost file system
          await asyncio.wait_for(worker.wait(), REAP_WITHIN)
      for pipe in self._pipes:
        pipe.close()

  def _on_signal(self, number: int) -> None:
    if not self.stopping:
      self._stop()
    elif number == signal.SIGINT:
      self.quitting = True
      self._kill()

  def _stop(self) -> None:
    self.stopping = True
    self.display.stopping()
    for worker in self._workers:
      _send_signal(worker, signal.SIGTERM)
    asyncio.get_running_loop().call_later(self.grace, self._kill)

  def _kill(self) -> None:
    for worker in self._workers:
      _send_signal(worker, signal.SIGKILL)

  async def _serve(self, slot: WorkerSlot) -> None:
    """Passes waiting runs to the worker of a slot until none is left; a worker that died is replaced."""
    worker = None
    while self.waiting and not self.stopping:
      try:
        self.check()
        worker = worker or await self._start(slot)
      except locks.Moved as error:
        self.moved = error
        self._stop()
        break
      except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not failure_causes.is_thread_limit(error):
          raise
        self.start_error = error  # the workers of the other slots train the remaining runs
        return
      if not self.waiting:
        break
      run = self.waiting.popleft()
      log = run.directory / self.group.log_name
      failure = await self._train(worker, run, log)
      if failure is not None:
        self._record_failure(run, failure, log)
      if worker.returncode is not None:
        worker = None
    if worker is not None:
      assert worker.stdin is not None
      worker.stdin.close()  # the worker exits
      with contextlib.suppress(TimeoutError):  # or hangs, in a thread of a library: then `run` kills it
        await asyncio.wait_for(worker.wait(), EXIT_WITHIN)

  def _record_failure(self, run: Run, failure: Failure, log: Path) -> None:
    self.failed.append(run)
    exists = run.directory.is_dir()
    if exists:  # if it has been moved away, nothing must be created in its place
      with contextlib.suppress(OSError):  # the disk may be full, which may be why the run failed
        run_directory.record_failure(run.directory, run_directory.FailureRecord(failure.message, failure.log_start))
    self.display.failed(run, failure.message, log if failure.show_log and exists else None, failure.log_start)

  async def _start(self, slot: WorkerSlot) -> asyncio.subprocess.Process:
    path = [str(PROJECT), *filter(None, [os.environ.get('PYTHONPATH')])]
    arguments = [] if slot.core is None else [f'--core={slot.core}']
    arguments += [] if self.group is SINGLE_PROCESS else self.group.flags
    async with self._start_lock:
      with signals.sigint_blocked_for_children():
        events, worker_end = os.pipe()  # not stdout, to which anything may print when Python starts
        try:
          worker = await asyncio.create_subprocess_exec(
            sys.executable, '-P', '-m', 'lab.launch.worker',  # -P: ignore modules in the current directory
            f'--events={worker_end}', f'--parent={os.getpid()}', *arguments,
            env=os.environ | {'PYTHONPATH': os.pathsep.join(path)} | slot.environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, pass_fds=[worker_end],
          )  # fmt: skip
        except BaseException:
          os.close(events)
          raise
        finally:
          os.close(worker_end)
    reader = asyncio.StreamReader()
    pipe = os.fdopen(events, 'rb', buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
      lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    self._events[worker] = reader
    self._pipes.append(transport)
    self._workers.append(worker)
    if self.stopping:
      _send_signal(worker, signal.SIGTERM)
    return worker

  async def _next_line(self, events: asyncio.StreamReader, run: Run, log: Path) -> bytes:
    """The next line that a worker reports. Prints a warning each time SILENCE seconds pass without one."""
    line = asyncio.ensure_future(events.readline())
    while not (await asyncio.wait([line], timeout=SILENCE))[0]:
      note = f'no report from its process for {SILENCE / 60:.0f} minutes: its steps may be slow, or it hangs; see {log}'
      self.display.progress(run, {'note': note})
    return line.result()

  async def _train(self, worker: asyncio.subprocess.Process, run: Run, log: Path) -> Failure | None:
    """Sends a run to a worker and waits until it ends; returns why it failed, or None."""
    assert worker.stdin is not None
    try:
      run_directory.extend_steps(run.directory, run.config)
    except (OSError, SaveFailed, ConfigError) as error:  # the disk may be full, or the run directory has changed
      return Failure(str(error), 0, show_log=False)
    events = self._events[worker]
    labels = {
      'experiment': run.experiment, 'variant': run.variant, 'seed': run.seed, 'learning_rate_tuned': run.tuned,
    }  # fmt: skip
    job = {'directory': str(run.directory.absolute()), 'config': run.config.to_flat(), 'labels': labels}
    log_start, oom_kills = log.stat().st_size if log.exists() else 0, failure_causes.count_oom_kills()
    self.display.started(run)
    with contextlib.suppress(ConnectionError):  # the worker has died: handled below
      worker.stdin.write(json.dumps(job).encode() + b'\n')
      await worker.stdin.drain()
    while line := await self._next_line(events, run, log):
      event = json.loads(line)
      if 'failed' in event:
        return Failure(event['failed'], log_start)
      if 'ended' in event:
        self.display.ended(run, event['ended'])
        return None
      if 'stopped' in event:
        self.display.stopped(run, saved=True)
        if not self.stopping:  # only this worker received a signal
          self._stop()
        return None
      self.display.progress(run, event)
    code = await worker.wait()
    if self.stopping:
      self.display.stopped(run, saved=False)
      return None
    abort = None if self.group is SINGLE_PROCESS else describe_abort(log, log_start, self.group)
    if abort:
      return Failure(abort, log_start, show_log=False)
    text = log.read_bytes()[log_start:].decode('utf8', errors='replace') if log.exists() else ''
    out_of_memory = failure_causes.count_oom_kills() > oom_kills
    return Failure(failure_causes.describe_exit(code, text, out_of_memory), log_start)


def _send_signal(worker: asyncio.subprocess.Process, number: int) -> None:
  if worker.returncode is None:
    with contextlib.suppress(ProcessLookupError):
      worker.send_signal(number)
