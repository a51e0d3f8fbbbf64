"""One run, from its config to its result: load the data, compile, train, evaluate, save."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
from absl import logging

from training import resume
from training.config import Config
from training.data.batches import train_batches
from training.data.loading import Data, load_data
from training.evaluation import result_of, validate
from training.files import SaveFailed, checksum_of
from training.identity import identity
from training.mesh import own_rows
from training.metric_names import NONFINITE_IN_A_ROW, TRAIN_LOSS
from training.metrics import named_metrics
from training.programs import Programs, programs_for
from training.provenance import environment, provenance
from training.run_files import locks, run_directory
from training.run_files.checkpoint import About, Checkpoints
from training.run_files.environment import record_environment
from training.run_files.metrics_log import Mark, MetricsLog, as_row
from training.run_files.result import write_result
from training.scoring import Scoring, Stopped
from training.state import State
from training.step import has_diverged, is_logged

Report = Callable[[dict[str, Any]], None]
UNLOGGED = 'unlogged'  # key in a checkpoint: the row of its step, if that is not in the log yet


def train(
  config: Config,
  directory: Path,
  labels: Mapping[str, Any],
  report: Report = lambda progress: None,
  stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
  """Trains a run to its end; resumes from its newest intact checkpoint, if it has one.

  If several processes train it together, each calls this; only the first one writes, except for the checkpoints.

  Args:
    config: the run's config.
    directory: for the run's files; created if necessary.
    labels: the first fields of result.json: {'experiment', 'variant', 'seed', 'learning_rate_tuned'}.
    report: receives progress at logged steps, {'step', 'steps', 'loss', 'tokens_per_second'}; the current phase,
      {'doing'} or {'evaluating', 'done', 'of'}; and warnings for the user, {'note'}.
    stop: called after every step and every batch of an evaluation; returns whether to stop.

  Returns:
    The content of result.json, which is written last; see training/evaluation.py.

  Raises:
    ConfigError: if the data do not fit the model, the directory belongs to another run, another process trains this
      run, or all its checkpoints are damaged.
    SaveFailed, OSError: if a file could not be written.
    locks.Moved: if the directory was moved or deleted meanwhile; nothing is created in its place.
    Stopped: if `stop` returned True.
  """
  started, should_stop = time.perf_counter(), StopOnce(stop)

  def note(text: str) -> None:
    logging.warning(text)
    report({'note': text})

  def check_stop() -> None:
    if should_stop():
      raise Stopped

  report({'doing': 'reading the data'})
  data, writes = load_data(config), jax.process_index() == 0
  run_directory.check(directory, config)
  run_directory.check_data(directory, data.checksum)
  lock = locks.locked(directory / locks.LOCK, locks.RELEASE_WITHIN) if writes else contextlib.nullcontext()
  with lock as held, _noticing_moves(directory, held):
    damage = run_directory.damage(directory, config)
    if damage:
      note(f'{damage}: resumes from the last intact checkpoint')
    if writes:
      run_directory.prepare(directory, config)
    report({'doing': 'compiling'})
    programs = programs_for(config)
    check_stop()
    report({'doing': 'starting'})
    check_lock = held.check if held else lambda: None
    with Checkpoints(directory / 'checkpoints', config.run.keep_checkpoints, check_lock) as checkpoints:
      state, about, resumed_at = resume.restore_or_init(config, directory, data, programs, checkpoints, note)
      if writes and (changed := record_environment(directory, data.checksum, resumed=resumed_at is not None)):
        note(changed)
      with MetricsLog(directory, about['log']) if writes else contextlib.nullcontext() as log:
        if log and log.note:
          note(log.note)
        scoring = functools.partial(
          Scoring, config, programs, directory=directory, report=report, stop=should_stop,
          depends_on={
            **about['run'], **environment(), 'code': about['code']['digest'],
            'final_evaluation_tokens': config.run.final_evaluation_tokens,
          },
        )  # fmt: skip
        about = {'train_seconds': 0.0 if resumed_at is None else None} | about
        training = _Training(config, data, programs, checkpoints, log, report, should_stop, about, scoring)
        state = training.run(state)
        mark = training.save(state)
      check_stop()
      report({'doing': 'evaluating'})
      evaluation = scoring(state.evaluated_params)
      result = result_of(config, state, data, evaluation)
      report({'doing': 'saving'})
    timing = {
      'seconds': time.perf_counter() - started, 'train_seconds': training.train_seconds(),
      'tokens_per_second': training.tokens_per_second(),
    }  # fmt: skip
    history = {'resumed_at': resumed_at, **{name: about[name] for name in resume.HISTORY}}
    files = {'config_checksum': checksum_of(identity(config)), 'log': mark}
    result = {**labels, **result, **timing, **history, **provenance(), **files}
    check_lock()
    if writes:
      write_result(directory, result)
      evaluation.close()
  return result


class StopOnce:
  """Remembers that a run was asked to stop: if several processes train together, they are asked only once."""

  def __init__(self, ask: Callable[[], bool]):
    self._ask, self._stopping = ask, False

  def __call__(self) -> bool:
    """Whether to stop; asks unless the answer was True before."""
    self._stopping = self._stopping or self._ask()
    return self._stopping


@contextlib.contextmanager
def _noticing_moves(directory: Path, held: locks.Lock | None) -> Iterator[None]:
  """Raises locks.Moved instead of a file error if the run's directory has been moved or deleted."""
  try:
    yield
  except (SaveFailed, OSError, locks.Moved):
    if held:
      try:
        held.check()
      except locks.Moved:
        run_directory.delete_leftovers(directory)
        raise
    raise


class _Training:
  """The loop over steps. A step's metrics are read after the next step is dispatched: so a GPU or TPU never waits."""

  def __init__(
    self,
    config: Config,
    data: Data,
    programs: Programs,
    checkpoints: Checkpoints,
    log: MetricsLog | None,
    report: Report,
    stop: Callable[[], bool],
    about: About,
    scoring: Callable[[Any], Scoring],
  ):
    self.config, self.data, self.programs = config, data, programs
    self.checkpoints, self.log, self.report = checkpoints, log, report
    self.stop, self.scoring, self.clock = stop, scoring, _Clock()
    self.about = {name: value for name, value in about.items() if name != UNLOGGED}
    self.unlogged = about.get(UNLOGGED)

  def run(self, state: State) -> State:
    """Takes the remaining steps, or those up to a divergence, and returns the last state; may raise Stopped."""
    run, first = self.config.run, int(state.step)
    if has_diverged(self.config, int(state.nonfinite_in_a_row)):  # restored; only its result was missing
      return state
    if self.unlogged is not None:
      self.log_row(first, self.unlogged['row'], self.unlogged['train_seconds'], state)
    rows = own_rows(self.programs.mesh, run.batch_size)
    batches = train_batches(self.data, run.batch_size, self.config.data.seed, first, run.steps - first, rows)
    unread = None
    self.clock.start(first)
    for step, batch in enumerate(batches, first + 1):
      state, metrics = self.programs.train_step(state, batch)
      if unread is not None and not self.record(*unread):
        return state
      unread = step, metrics, self.train_seconds()
      stopping = self.stop()
      if run.is_evaluated(step) or run.is_saved(step) or stopping:
        jax.block_until_ready(metrics)
        self.clock.stop(step)
        if not self.record(step, metrics, self.train_seconds(), state):
          return state
        if stopping:
          self.save(state)
          raise Stopped
        unread = None
        self.clock.start(step)
    return state

  def record(self, step: int, metrics: dict[str, Any], train_seconds: float | None, state: State | None = None) -> bool:
    """Logs a step's metrics if due and, given its state, evaluates and saves if due; False if the run has diverged."""
    diverged = has_diverged(self.config, int(metrics['scalars'][NONFINITE_IN_A_ROW]))
    row = named_metrics(metrics) if is_logged(self.config, step) or diverged else {}
    if row:
      speed = self.tokens_per_second()
      self.report({'step': step, 'steps': self.config.run.steps, 'loss': row[TRAIN_LOSS], 'tokens_per_second': speed})
    self.log_row(step, as_row(row), train_seconds, None if diverged else state)
    if state is not None and self.config.run.is_saved(step) and not diverged:
      self.save(state)
    return not diverged

  def log_row(self, step: int, row: dict[str, Any], train_seconds: float | None, state: State | None) -> None:
    """Logs a row unless it is empty, with a point of the validation curve if one is due and the state is given.

    Raises:
      Stopped: if the validation was stopped; the state is saved with the row, which the next start will log.
    """
    if state is not None and self.config.run.is_evaluated(step):
      try:
        row = row | validate(self.config, self.data, self.scoring(state.evaluated_params))
      except Stopped:
        self.save(state, {UNLOGGED: {'row': row, 'train_seconds': train_seconds}})
        raise
    if row and self.log:
      self.log.write(step, row, train_seconds)

  def save(self, state: State, also: About = MappingProxyType({})) -> Mark:
    """Starts writing a checkpoint, after syncing the log: a checkpoint never refers to lines that are not on disk.

    Returns:
      The mark of the log at this state.
    """
    mark = self.log.sync() if self.log else self.about['log']
    self.checkpoints.save(state, {**self.about, 'train_seconds': self.train_seconds(), 'log': mark, **also})
    return mark

  def train_seconds(self) -> float | None:
    """Seconds spent in training steps, over all starts of the run; None if an earlier start recorded no times."""
    before = self.about['train_seconds']
    return None if before is None else before + self.clock.elapsed()

  def tokens_per_second(self) -> float | None:
    """Training tokens per second, without evaluation and compilation; None before the clock was first stopped."""
    per_step = self.config.run.batch_size * self.config.data.sequence_length
    return per_step * self.clock.steps / self.clock.seconds if self.clock.steps else None


class _Clock:
  """Sums the time between start(step) and stop(step)."""

  def __init__(self):
    self.steps, self.seconds = 0, 0.0
    self._step, self._started = 0, None

  def start(self, step: int) -> None:
    self._step, self._started = step, time.perf_counter()

  def stop(self, step: int) -> None:
    self.steps, self.seconds, self._started = self.steps + step - self._step, self.elapsed(), None

  def elapsed(self) -> float:
    """The seconds so far, including those since a `start` without a `stop`."""
    return self.seconds + (0.0 if self._started is None else time.perf_counter() - self._started)
