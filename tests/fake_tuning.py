"""Fake training: the result of each run is a function of its variant, learning rate and seed."""

import math
from collections.abc import Sequence
from types import SimpleNamespace

import fake_runs

from lab.commands.run_experiment import TrainingOutcome
from lab.core import plan
from lab.core.run import Run
from lab.launch import worker_pool
from lab.launch.launch_result import Launcher

BEST = {'baseline': 4e-3, 'post_norm': 2e-3, 'relu': 1.6e-2}
FLOORS = {'baseline': 2.3, 'post_norm': 2.28, 'relu': 2.35}
TEST_MINUS_VALIDATION = 0.1


def loss(variant: str, rate: float, seed: int) -> float:
  """Returns the validation loss in bits per byte: a parabola in the logarithm of the rate, plus a term of the seed."""
  if variant == 'no_residual':
    return 6.01 - rate  # the unigram entropy of fake_runs is 6.0
  return FLOORS[variant] + 0.03 * math.log2(rate / BEST[variant]) ** 2 + 1e-4 * (seed % 7)


def status(variant: str, rate: float, seed: int) -> str:
  """Returns a run's status: post_norm diverges with one seed at each of the highest rates; no_residual never learns."""
  if variant == 'no_residual':
    return 'failed_to_learn'
  return 'diverged' if variant == 'post_norm' and (rate, seed) in ((8e-3, 101), (1.6e-2, 100)) else 'completed'


class Trainer:
  """Replaces `train_runs`; records the labels of the runs that it trained."""

  def __init__(self):
    self.trained: list[str] = []

  def __call__(
    self, runs: Sequence[Run], launcher: Launcher, console, extend: bool = False, joins: bool = False
  ) -> TrainingOutcome:
    plan.check_directories(runs, extend, joins)
    todo = worker_pool.unfinished(runs)
    for run in todo:
      variant, rate = run.variant.partition('/')[0], run.config.optimizer.learning_rate
      final = loss(variant, rate, run.seed)
      fake_runs.write_run(
        run.directory, run.experiment, run.variant, run.seed, status(variant, rate, run.seed), run.config, final,
        inspect=False, points=4, tuned=run.tuned, test=final + TEST_MINUS_VALIDATION,
      )  # fmt: skip
      self.trained.append(run.label)
    return TrainingOutcome(SimpleNamespace(corpus=None, checksum=fake_runs.CHECKSUM), todo, [], None)
