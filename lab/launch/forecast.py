"""About how long runs will take on this machine: by runs that finished here, by timed steps, or by a large product."""

import heapq
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.core.found_runs import found_runs
from lab.core.run import Run
from lab.launch import devices
from lab.launch.devices import Place
from model.counts import flops_per_token
from training.config import Config
from training.host import cores
from training.provenance import processor
from training.run_files.result import read_result

FORWARD = 1 / 3  # of the time that a training step takes on as many tokens
OF_A_PRODUCT = 0.5  # the share of a large product's speed that training reaches: .37 to .73 over sizes (docs/speed.md)
COMPARABLE = 4  # times: a step of more or fewer FLOPs than this tells nothing, since small ones are mostly overhead
KJV_SPLIT = 215_000  # bytes in each held-out split of the King James text
WIDTH = 1024  # of the product
# What decides how long a step takes, and the seeds and rates that do not.
SHAPE = ('data.sequence_length', 'run.batch_size', 'optimizer.name', 'optimizer.accumulate', 'inspect.level')

Speed = Callable[[Config], float]  # tokens a second that a run trains on


class Forecast(NamedTuple):
  """How long runs take together, in seconds, and how that was found out."""

  seconds: float
  basis: str

  def line(self, runs: int, at_a_time: int) -> str:
    """The forecast as a sentence."""
    rest = f', {at_a_time} runs at a time' if at_a_time > 1 else ''
    what = f'{runs} run{"s" if runs > 1 else ""}{rest}'
    return f'about {duration(self.seconds)} for {what}, compilation not included ({self.basis})'


def forecast(runs: Sequence[Run], done: Mapping[Run, int], places: Sequence[Place], workdir: Path) -> Forecast | None:
  """How long the runs will take; None where nothing here tells, as on a GPU on which no run has finished.

  Args:
    runs: those that are to be trained.
    done: the step that each would resume from.
    places: of the workers.
    workdir: whose finished runs are looked at.
  """
  speed, basis = of_finished(workdir, places[0], [run.config for run in runs])
  if speed is None:
    if devices.ask_jax().platform != 'cpu':
      return None
    flops = product_speed(1 if places[0].core is not None else len(cores()))
    basis = f'rough: assumes half the speed of a large matrix product here, {flops / 1e9:.0f} GFLOP/s'

    def speed(config: Config) -> float:
      return OF_A_PRODUCT * flops / _flops_per_token(config)

  each = [seconds(run.config, speed(run.config), done.get(run, 0)) for run in runs]
  return Forecast(together(each, len(places)), basis)


def seconds(config: Config, tokens_per_second: float, done: int = 0) -> float:
  """The time of a run from step `done` on: of its training, its validation curve, and its final evaluation."""
  run, batch = config.run, _tokens(config)
  points = min(run.evaluations, run.steps) * (1 - done / run.steps)
  evaluated = points * run.evaluation_batches * batch
  if not config.data.synthetic:
    limit = run.final_evaluation_tokens or KJV_SPLIT
    evaluated += 2 * (min(limit, KJV_SPLIT) if config.data.task == 'kjv' else limit)
  return ((run.steps - done) * batch + FORWARD * evaluated) / tokens_per_second


def together(each: Sequence[float], at_a_time: int) -> float:
  """How long runs take of which so many are trained at a time, in their order."""
  free = [0.0] * max(1, min(at_a_time, len(each)))
  for one in each:
    heapq.heappush(free, heapq.heappop(free) + one)
  return max(free)


def product_speed(threads: int) -> float:
  """FLOP/s of one large float32 product, on so many of the cores there are."""
  left, right = (np.ones((WIDTH, WIDTH), np.float32) for _ in range(2))
  left @ right
  best = min(_timed(lambda: left @ right) for _ in range(3))
  return 2 * WIDTH**3 / best * threads / len(cores())  # NumPy takes all of them


def duration(seconds: float) -> str:
  """Seconds as a person would say them."""
  if seconds < 90:
    return f'{max(seconds, 1):.0f} s'
  return f'{seconds / 60:.0f} min' if seconds < 90 * 60 else f'{seconds / 3600:.1f} h'


def of_finished(workdir: Path, place: Place, configs: Sequence[Config]) -> tuple[Speed | None, str]:
  """The speed that finished runs of the same shape had here, else that of comparable ones, scaled by FLOPs.

  None where a config has no comparable run: a toy model is bound by overhead, and says nothing of a large one.
  """
  device = devices.ask_jax()
  here = f'cpu ({processor()})' if device.platform == 'cpu' else device.kind
  layout = f', {1 if place.core is not None else len(cores())} core(s)'
  finished: list[tuple[Config, float]] = []
  for run in found_runs(workdir).runs:
    result = read_result(run.directory) or {}
    measured = result.get('tokens_per_second')
    if measured and result.get('device') == here and str(result.get('layout', '')).endswith(layout):
      finished.append((run.config, measured))
  asked = {config: _like(config, finished) for config in configs}
  if not all(asked.values()):
    return None, ''
  used = {position for speeds in asked.values() for position, _ in speeds}

  def speed(config: Config) -> float:
    return statistics.median(one for _, one in asked[config])

  return speed, f'from {len(used)} finished run{"s" if len(used) > 1 else ""} in {workdir}'


def _like(config: Config, finished: Sequence[tuple[Config, float]]) -> list[tuple[int, float]]:
  """Which finished runs tell the speed of a config, and what each says it is, in tokens a second."""
  same = [(number, speed) for number, (other, speed) in enumerate(finished) if _shape(other) == _shape(config)]
  flops, batch = _flops_per_token(config), _tokens(config)
  return same or [
    (number, speed * _flops_per_token(other) / flops)
    for number, (other, speed) in enumerate(finished)
    if _near(_flops_per_token(other), flops) and _near(_flops_per_token(other) * _tokens(other), flops * batch)
  ]


def _near(one: float, other: float) -> bool:
  return 1 / COMPARABLE <= one / other <= COMPARABLE


def _tokens(config: Config) -> int:
  return config.run.batch_size * config.data.sequence_length


def _shape(config: Config) -> tuple:
  flat = config.to_flat()
  return config.model, *(flat[path] for path in SHAPE)


def _flops_per_token(config: Config) -> float:
  return flops_per_token(config.model, config.data.sequence_length)


def _timed(work: Callable[[], object]) -> float:
  started = time.perf_counter()
  work()
  return time.perf_counter() - started
