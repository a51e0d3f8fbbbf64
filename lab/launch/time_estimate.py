"""Estimates how long runs will take on this machine, from finished runs or from the speed of a large matrix product."""

import heapq
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.core.find_runs import find_runs
from lab.core.run import Run
from lab.launch import devices
from lab.launch.devices import WorkerSlot
from model.counts import flops_per_token
from training.config import Config
from training.host import cores, processor
from training.run_files.result import read_result

EVALUATION_COST = 1 / 3  # cost of evaluating a token relative to training on it: the forward pass alone
MATMUL_EFFICIENCY = 0.5  # training speed relative to a large matrix product: 0.37 to 0.73 over sizes (docs/speed.md)
MAX_FLOPS_RATIO = 4  # between runs whose speeds are compared, since a small step is mostly overhead
KJV_SPLIT = 215_000  # bytes in each held-out split of the King James text
MATMUL_SIZE = 1024
# Together with the model, these settings determine how long a step takes; seeds and learning rates do not matter.
STEP_SETTINGS = ('data.sequence_length', 'run.batch_size', 'optimizer.name', 'optimizer.accumulate', 'inspect.level')

Speed = Callable[[Config], float]  # the training speed of a run, in tokens per second


class TimeEstimate(NamedTuple):
  """How long runs take in total, in seconds, and what the estimate is based on."""

  seconds: float
  basis: str

  def sentence(self, runs: int, at_a_time: int) -> str:
    """Formats the estimate as a sentence."""
    parallel = f', {at_a_time} runs at a time' if at_a_time > 1 else ''
    what = f'{runs} run{"s" if runs > 1 else ""}{parallel}'
    return f'about {format_duration(self.seconds)} for {what}, compilation not included ({self.basis})'


def estimate_time(
  runs: Sequence[Run], resume_steps: Mapping[Run, int], slots: Sequence[WorkerSlot], workdir: Path
) -> TimeEstimate | None:
  """Estimates how long the runs will take; None if there is no basis (a GPU without finished runs).

  Args:
    runs: the runs to train.
    resume_steps: the step that each run resumes from; a run that is not listed starts from 0.
    slots: the slots of the workers.
    workdir: the work directory to search for finished runs.
  """
  speed, basis = speed_of_finished_runs(workdir, slots[0], [run.config for run in runs])
  if speed is None:
    if devices.detect_devices().platform != 'cpu':
      return None
    flops = matmul_flops_per_second(1 if slots[0].core is not None else len(cores()))
    basis = f'rough: assumes half the speed of a large matrix product on this machine, {flops / 1e9:.0f} GFLOP/s'

    def speed(config: Config) -> float:
      return MATMUL_EFFICIENCY * flops / _flops_per_token(config)

  each = [run_seconds(run.config, speed(run.config), resume_steps.get(run, 0)) for run in runs]
  return TimeEstimate(total_seconds(each, len(slots)), basis)


def run_seconds(config: Config, tokens_per_second: float, resume_step: int = 0) -> float:
  """The seconds that a run takes from `resume_step` on: training, its validation curve, and the final evaluation."""
  run, tokens = config.run, _tokens_per_step(config)
  evaluations = min(run.evaluations, run.steps) * (1 - resume_step / run.steps)
  evaluated = evaluations * run.evaluation_batches * tokens
  if not config.data.synthetic:
    limit = run.final_evaluation_tokens or KJV_SPLIT
    evaluated += 2 * (min(limit, KJV_SPLIT) if config.data.task == 'kjv' else limit)
  return ((run.steps - resume_step) * tokens + EVALUATION_COST * evaluated) / tokens_per_second


def total_seconds(each: Sequence[float], at_a_time: int) -> float:
  """The seconds that all runs take if the next one starts whenever a worker becomes free.

  Args:
    each: the seconds of each run, in the order in which they start.
    at_a_time: the number of workers.
  """
  free_at = [0.0] * max(1, min(at_a_time, len(each)))
  for seconds in each:
    heapq.heappush(free_at, heapq.heappop(free_at) + seconds)
  return max(free_at)


def matmul_flops_per_second(threads: int) -> float:
  """The speed of a large float32 matrix product on this many cores, in FLOP/s."""
  left, right = (np.ones((MATMUL_SIZE, MATMUL_SIZE), np.float32) for _ in range(2))
  left @ right
  best = min(_seconds_of(lambda: left @ right) for _ in range(3))
  return 2 * MATMUL_SIZE**3 / best * threads / len(cores())  # NumPy uses all cores


def format_duration(seconds: float) -> str:
  """Formats a duration in seconds, minutes or hours: '75 s', '5 min', '2.0 h'."""
  if seconds < 90:
    return f'{max(seconds, 1):.0f} s'
  return f'{seconds / 60:.0f} min' if seconds < 90 * 60 else f'{seconds / 3600:.1f} h'


def speed_of_finished_runs(workdir: Path, slot: WorkerSlot, configs: Sequence[Config]) -> tuple[Speed | None, str]:
  """The training speed of each config, from finished runs on this machine, and a description of those runs.

  Uses runs with the same model and step settings; if there are none, runs of a similar size, scaled by FLOPs per token.
  Returns (None, '') if a config has neither.
  """
  detected = devices.detect_devices()
  device = f'cpu ({processor()})' if detected.platform == 'cpu' else detected.kind
  layout = f', {1 if slot.core is not None else len(cores())} core(s)'
  finished: list[tuple[Config, float]] = []
  for run in find_runs(workdir).runs:
    result = read_result(run.directory) or {}
    speed = result.get('tokens_per_second')
    if speed and result.get('device') == device and str(result.get('layout', '')).endswith(layout):
      finished.append((run.config, speed))
  comparable = {config: _comparable_speeds(config, finished) for config in configs}
  if not all(comparable.values()):
    return None, ''
  used = {position for speeds in comparable.values() for position, _ in speeds}

  def median_speed(config: Config) -> float:
    return statistics.median(speed for _, speed in comparable[config])

  return median_speed, f'from {len(used)} finished run{"s" if len(used) > 1 else ""} in {workdir}'


def _comparable_speeds(config: Config, finished: Sequence[tuple[Config, float]]) -> list[tuple[int, float]]:
  """The position of each comparable finished run, and the speed it implies for the config in tokens per second."""
  same = [
    (position, speed) for position, (other, speed) in enumerate(finished) if _speed_key(other) == _speed_key(config)
  ]
  flops, tokens = _flops_per_token(config), _tokens_per_step(config)
  return same or [
    (position, speed * _flops_per_token(other) / flops)
    for position, (other, speed) in enumerate(finished)
    if _similar(_flops_per_token(other), flops)
    and _similar(_flops_per_token(other) * _tokens_per_step(other), flops * tokens)
  ]


def _similar(one: float, other: float) -> bool:
  return 1 / MAX_FLOPS_RATIO <= one / other <= MAX_FLOPS_RATIO


def _tokens_per_step(config: Config) -> int:
  return config.run.batch_size * config.data.sequence_length


def _speed_key(config: Config) -> tuple:
  flat = config.to_flat()
  return config.model, *(flat[path] for path in STEP_SETTINGS)


def _flops_per_token(config: Config) -> float:
  return flops_per_token(config.model, config.data.sequence_length)


def _seconds_of(work: Callable[[], object]) -> float:
  started = time.perf_counter()
  work()
  return time.perf_counter() - started
