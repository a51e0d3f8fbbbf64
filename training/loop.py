"""One run, from its config to its result: load, compile, train, evaluate, save."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from training import run_directory
from training.checkpoint import Checkpoints
from training.config import Config
from training.data import Data, load_for, train_batches
from training.environment import environment, note_environment
from training.evaluation import result_of, validate
from training.files import write_json
from training.metrics import named_metrics
from training.metrics_log import MetricsLog
from training.programs import Programs, programs_for
from training.step import State, has_diverged, is_logged

Report = Callable[[dict[str, Any]], None]


def train(
  config: Config, directory: Path, labels: Mapping[str, Any], report: Report = lambda progress: None
) -> dict[str, Any]:
  """Trains a run to its end, going on from its newest checkpoint if there is one.

  Args:
    config: all that decides the run.
    directory: where its files are; made if it is not there.
    labels: what the run is called, as {'experiment', 'variant', 'seed'}; opens result.json.
    report: is told of progress at logged steps, as {'step', 'steps', 'loss', 'tokens_per_second'}, and of what a
      person should know, as {'note'}.

  Returns:
    What result.json holds, which is written last; see training/evaluation.py.

  Raises:
    ConfigError: if the data do not fit the model, or the directory is another run's.
  """
  started = time.perf_counter()
  data = load_for(config)
  run_directory.prepare(directory, config)
  run_directory.check_text(directory, data.checksum)
  programs = programs_for(config)
  with (
    run_directory.locked(directory),
    Checkpoints(directory / 'checkpoints', config.run.keep_checkpoints) as checkpoints,
  ):
    state = programs.init(np.uint32(config.run.init_seed))
    resumed_at = checkpoints.latest_step()
    if resumed_at is not None:
      state = checkpoints.restore(resumed_at, state)
    note = note_environment(directory, data.checksum, resumed=resumed_at is not None)
    if note:
      logging.warning(note)
      report({'note': note})
    with MetricsLog(directory, last_step=resumed_at or 0) as log:
      training = _Training(config, data, programs, checkpoints, log, report)
      state = training.run(state)
      checkpoints.save(state)
    result = result_of(config, programs, state, data)
  timing = {'seconds': time.perf_counter() - started, 'tokens_per_second': training.tokens_per_second()}
  result = {**labels, **result, **timing, 'resumed_at': resumed_at, **environment()}
  write_json(directory / 'result.json', result)
  return result


class _Training:
  """The loop over steps. A step's metrics are read after the next one is dispatched: the device never waits."""

  def __init__(
    self, config: Config, data: Data, programs: Programs, checkpoints: Checkpoints, log: MetricsLog, report: Report
  ):
    self.config, self.data, self.programs = config, data, programs
    self.checkpoints, self.log, self.report = checkpoints, log, report
    run = config.run
    self.evaluation_steps = set(run.evaluation_steps())
    self.checkpoint_steps = set(range(run.checkpoint_interval, run.steps, run.checkpoint_interval))
    self.clock = _Clock()

  def run(self, state: State) -> State:
    """Takes the steps that are left, or those up to a divergence, and returns the last state."""
    run, first = self.config.run, int(state.step)
    if has_diverged(self.config, int(state.nonfinite_in_a_row)):  # restored, and its result is not written yet
      return state
    batches = train_batches(self.data, run.batch_size, self.config.data.seed, first, run.steps - first)
    unread = None
    self.clock.start(first)
    for step, batch in enumerate(batches, first + 1):
      state, metrics = self.programs.train_step(state, batch)
      if unread is not None and not self.record(*unread):
        return state
      unread = step, metrics
      if step in self.evaluation_steps or step in self.checkpoint_steps:
        jax.block_until_ready(metrics)
        self.clock.stop(step)
        if not self.record(step, metrics, state):
          return state
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
    if row:
      self.log.write(step, row)
    if state is not None and step in self.checkpoint_steps and not diverged:
      self.checkpoints.save(state)
    return not diverged

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
