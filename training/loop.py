"""One run, from its config to its result: load, compile, train, evaluate, save."""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from absl import logging

from training import locks, resume, run_directory
from training.checkpoint import About, Checkpoints
from training.config import Config
from training.data import Data, load_for, train_batches
from training.evaluation import result_of, validate
from training.files import checksum_of
from training.mesh import own_rows
from training.metrics import named_metrics
from training.metrics_log import Mark, MetricsLog
from training.programs import Programs, programs_for
from training.provenance import environment, note_environment
from training.result import write_result
from training.step import State, has_diverged, is_logged

Report = Callable[[dict[str, Any]], None]


class Stopped(Exception):  # noqa: N818 - nothing is wrong
  """The run was told to stop, and has saved what it did; calling `train` again goes on from there."""


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
    report: is told of progress at logged steps, as {'step', 'steps', 'loss', 'tokens_per_second'}, and of what a
      person should know, as {'note'}.
    stop: is asked after every step whether to stop there.

  Returns:
    What result.json holds, which is written last; see training/evaluation.py.

  Raises:
    ConfigError: if the data do not fit the model, the directory is another run's, another process trains it, or no
      checkpoint of it is whole.
    SaveFailed, OSError: if something could not be written.
    Stopped: if told to.
  """
  started = time.perf_counter()

  def note(text: str) -> None:
    logging.warning(text)
    report({'note': text})

  def go_on() -> None:
    if stop():
      raise Stopped

  data, writes = load_for(config), jax.process_index() == 0
  run_directory.check(directory, config)
  run_directory.check_text(directory, data.checksum)
  with locks.locked(directory / locks.LOCK, locks.RELEASE_WITHIN) if writes else contextlib.nullcontext():
    damage = run_directory.damage(directory, config)
    if damage:
      note(f'{damage}: resumes from the last checkpoint that is whole')
    if writes:
      run_directory.prepare(directory, config)
    programs = programs_for(config)
    go_on()
    with Checkpoints(directory / 'checkpoints', config.run.keep_checkpoints) as checkpoints:
      state, about, resumed_at = resume.state_to_go_on_from(config, directory, data, programs, checkpoints, note)
      if writes and (changed := note_environment(directory, data.checksum, resumed=resumed_at is not None)):
        note(changed)
      with MetricsLog(directory, about['log']) if writes else contextlib.nullcontext() as log:
        if log and log.note:
          note(log.note)
        training = _Training(config, data, programs, checkpoints, log, report, stop, about)
        state = training.run(state)
        mark = training.save(state)
      go_on()
      result = result_of(config, programs, state, data)
    timing = {'seconds': time.perf_counter() - started, 'tokens_per_second': training.tokens_per_second()}
    origin = {'resumed_at': resumed_at, **{name: about[name] for name in resume.KEPT}, 'code': about['code']}
    files = {'config_checksum': checksum_of(config.to_flat()), 'log': mark}
    result = {**labels, **result, **timing, **origin, **environment(), **files}
    if writes:
      write_result(directory, result)
  return result


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
  ):
    self.config, self.data, self.programs = config, data, programs
    self.checkpoints, self.log, self.report = checkpoints, log, report
    self.stop, self.about = stop, about
    run = config.run
    self.evaluation_steps = set(run.evaluation_steps())
    self.checkpoint_steps = set(range(run.checkpoint_interval, run.steps, run.checkpoint_interval))
    self.clock = _Clock()

  def run(self, state: State) -> State:
    """Takes the steps that are left, or those up to a divergence, and returns the last state; raises Stopped."""
    run, first = self.config.run, int(state.step)
    if has_diverged(self.config, int(state.nonfinite_in_a_row)):  # restored, and its result is not written yet
      return state
    own = own_rows(self.programs.mesh, run.batch_size)
    batches = train_batches(self.data, run.batch_size, self.config.data.seed, first, run.steps - first, own)
    unread = None
    self.clock.start(first)
    for step, batch in enumerate(batches, first + 1):
      state, metrics = self.programs.train_step(state, batch)
      if unread is not None and not self.record(*unread):
        return state
      unread = step, metrics
      stopping = self.stop()
      if step in self.evaluation_steps or step in self.checkpoint_steps or stopping:
        jax.block_until_ready(metrics)
        self.clock.stop(step)
        if not self.record(step, metrics, state):
          return state
        if stopping:
          self.save(state)
          raise Stopped
        unread = None
        self.clock.start(step)
    return state

  def record(self, step: int, metrics: dict[str, Any], state: State | None = None) -> bool:
    """Logs what is due at this step, and with the state at hand evaluates and saves; False if the run has diverged."""
    diverged = has_diverged(self.config, int(metrics['scalars']['nonfinite_in_a_row']))
    row = named_metrics(metrics) if is_logged(self.config, step) or diverged else {}
    if row:
      speed = self.tokens_per_second()
      self.report({'step': step, 'steps': self.config.run.steps, 'loss': row['train/loss'], 'tokens_per_second': speed})
    if state is not None and step in self.evaluation_steps and not diverged:
      row |= validate(self.config, self.programs, state.params, self.data)
    if row and self.log:
      self.log.write(step, row)
    if state is not None and step in self.checkpoint_steps and not diverged:
      self.save(state)
    return not diverged

  def save(self, state: State) -> Mark:
    """Starts writing a checkpoint, the log before it: a checkpoint never tells of lines that are not on the disk.

    Returns:
      The lines that belong to the state.
    """
    mark = self.log.sync() if self.log else self.about['log']
    self.checkpoints.save(state, {**self.about, 'log': mark})
    return mark

  def tokens_per_second(self) -> float | None:
    """Tokens trained on a second of training, evaluation and compilation left out; None before the first pause."""
    per_step = self.config.run.batch_size * self.config.data.sequence_length
    return per_step * self.clock.steps / self.clock.seconds if self.clock.steps else None


class _Clock:
  """Adds up the time between start(step) and stop(step)."""

  def __init__(self):
    self.steps, self.seconds = 0, 0.0

  def start(self, step: int) -> None:
    self._step, self._time = step, time.perf_counter()

  def stop(self, step: int) -> None:
    self.steps += step - self._step
    self.seconds += time.perf_counter() - self._time
