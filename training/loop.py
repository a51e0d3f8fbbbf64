"""One run, from its config to its result: load, compile, train, evaluate, save."""

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
UNLOGGED = 'unlogged'  # of a checkpoint: the row of its step that is not in the log yet


def train(
  config: Config,
  directory: Path,
  labels: Mapping[str, Any],
  report: Report = lambda progress: None,
  stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
  """Trains a run to its end, going on from its newest checkpoint that is whole, if there is one.

  Where several processes train it together, each calls this; the first one alone writes, but for the checkpoints.

  Args:
    config: all that decides the run.
    directory: where its files are; made if it is not there.
    labels: what is said of the run, as {'experiment', 'variant', 'seed', 'learning_rate_tuned'}; opens result.json.
    report: is told of progress at logged steps, as {'step', 'steps', 'loss', 'tokens_per_second'}; of what the run does
      between steps, as {'doing'} or {'evaluating', 'done', 'of'}; and of what a person should know, as {'note'}.
    stop: is asked after every step, and every batch of an evaluation, whether to stop there.

  Returns:
    What result.json holds, which is written last; see training/evaluation.py.

  Raises:
    ConfigError: if the data do not fit the model, the directory is another run's, another process trains it, or no
      checkpoint of it is whole.
    SaveFailed, OSError: if something could not be written.
    locks.Moved: if the directory is no longer where it was; nothing is created in its place.
    Stopped: if told to.
  """
  started, told = time.perf_counter(), Stop(stop)

  def note(text: str) -> None:
    logging.warning(text)
    report({'note': text})

  def go_on() -> None:
    if told():
      raise Stopped

  report({'doing': 'reading the data'})
  data, writes = load_data(config), jax.process_index() == 0
  run_directory.check(directory, config)
  run_directory.check_data(directory, data.checksum)
  lock = locks.locked(directory / locks.LOCK, locks.RELEASE_WITHIN) if writes else contextlib.nullcontext()
  with lock as held, _told_if_moved(directory, held):
    damage = run_directory.damage(directory, config)
    if damage:
      note(f'{damage}: resumes from the last checkpoint that is whole')
    if writes:
      run_directory.prepare(directory, config)
    report({'doing': 'compiling'})
    programs = programs_for(config)
    go_on()
    report({'doing': 'starting'})
    kept, check = config.run.keep_checkpoints, held.check if held else lambda: None
    with Checkpoints(directory / 'checkpoints', kept, check) as checkpoints:
      state, about, resumed_at = resume.restore_or_init(config, directory, data, programs, checkpoints, note)
      if writes and (changed := record_environment(directory, data.checksum, resumed=resumed_at is not None)):
        note(changed)
      with MetricsLog(directory, about['log']) if writes else contextlib.nullcontext() as log:
        if log and log.note:
          note(log.note)
        scoring = functools.partial(
          Scoring, config, programs, directory=directory, report=report, stop=told,
          bound_to={
            **about['run'], **environment(), 'code': about['code']['digest'],
            'final_evaluation_tokens': config.run.final_evaluation_tokens,
          },
        )  # fmt: skip
        about = {'train_seconds': 0.0 if resumed_at is None else None} | about
        training = _Training(config, data, programs, checkpoints, log, report, told, about, scoring)
        state = training.run(state)
        mark = training.save(state)
      go_on()
      report({'doing': 'evaluating'})
      evaluation = scoring(state.evaluated_params)
      result = result_of(config, state, data, evaluation)
      report({'doing': 'saving'})
    timing = {
      'seconds': time.perf_counter() - started, 'train_seconds': training.train_seconds(),
      'tokens_per_second': training.tokens_per_second(),
    }  # fmt: skip
    origin = {'resumed_at': resumed_at, **{name: about[name] for name in resume.KEPT}}
    files = {'config_checksum': checksum_of(identity(config)), 'log': mark}
    result = {**labels, **result, **timing, **origin, **provenance(), **files}
    check()
    if writes:
      write_result(directory, result)
      evaluation.close()
  return result


class Stop:
  """Whether to stop: once told so, for good. Where several processes train together, the answer comes only once."""

  def __init__(self, ask: Callable[[], bool]):
    self._ask, self._told = ask, False

  def __call__(self) -> bool:
    """Asks, unless the answer is known."""
    self._told = self._told or self._ask()
    return self._told


@contextlib.contextmanager
def _told_if_moved(directory: Path, held: locks.Lock | None) -> Iterator[None]:
  """If the directory of the run has been moved or deleted, raises locks.Moved rather than what came of it."""
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
  """The loop over steps. A step's metrics are read after the next one is dispatched: a GPU or TPU never waits."""

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
    """Takes the steps that are left, or those up to a divergence, and returns the last state; raises Stopped."""
    run, first = self.config.run, int(state.step)
    if has_diverged(self.config, int(state.nonfinite_in_a_row)):  # restored, and its result is not written yet
      return state
    if self.unlogged is not None:
      self.log_row(first, self.unlogged['row'], self.unlogged['train_seconds'], state)
    own = own_rows(self.programs.mesh, run.batch_size)
    batches = train_batches(self.data, run.batch_size, self.config.data.seed, first, run.steps - first, own)
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
    """Logs what is due at this step, and with the state at hand evaluates and saves; False if the run has diverged."""
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
    """Logs a row, if there is any, with a point of the validation curve if one is due and the state is at hand.

    Raises:
      Stopped: if told to while that is measured; the state is saved, and with it the row, which the next start logs.
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
    """Starts writing a checkpoint, the log before it: a checkpoint never tells of lines that are not on the disk.

    Returns:
      The lines that belong to the state.
    """
    mark = self.log.sync() if self.log else self.about['log']
    self.checkpoints.save(state, {**self.about, 'train_seconds': self.train_seconds(), 'log': mark, **also})
    return mark

  def train_seconds(self) -> float | None:
    """What the run has spent in training steps, over all its starts; None if an earlier one kept no times."""
    before = self.about['train_seconds']
    return None if before is None else before + self.clock.elapsed()

  def tokens_per_second(self) -> float | None:
    """Tokens trained on a second of training, evaluation and compilation left out; None before the first pause."""
    per_step = self.config.run.batch_size * self.config.data.sequence_length
    return per_step * self.clock.steps / self.clock.seconds if self.clock.steps else None


class _Clock:
  """Adds up the time between start(step) and stop(step)."""

  def __init__(self):
    self.steps, self.seconds = 0, 0.0
    self._step, self._started = 0, None

  def start(self, step: int) -> None:
    self._step, self._started = step, time.perf_counter()

  def stop(self, step: int) -> None:
    self.steps, self.seconds, self._started = self.steps + step - self._step, self.elapsed(), None

  def elapsed(self) -> float:
    """The seconds so far, those since an unfinished `start` too."""
    return self.seconds + (0.0 if self._started is None else time.perf_counter() - self._started)
