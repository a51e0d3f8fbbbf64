"""What trained reproductions share: variants over a grid of learning rates, final losses that no divergence can hide.

Wortsman et al. 2023, Small-scale proxies for large-scale Transformer training instabilities, section 2.3.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import BITS, RecordedRun
from lab.core.experiment import Changes
from training.metric_names import TRAIN_LOSS

if TYPE_CHECKING:  # matplotlib takes a second to import
  from matplotlib.axes import Axes


def over_rates(named: Mapping[str, Changes], rates: Sequence[float]) -> dict[str, Changes]:
  """Each of the named changes at each learning rate, as {'pre_0.001': {..., 'optimizer.learning_rate': 0.001}}."""
  return {
    at(name, rate): {**changes, 'optimizer.learning_rate': rate} for name, changes in named.items() for rate in rates
  }


def at(name: str, rate: float) -> str:
  """The name of a variant at a rate."""
  return f'{name}_{rate:g}'


def final_losses(found: ExperimentRuns, variant: str) -> np.ndarray:
  """The final loss of a variant by seed, (seeds,), in the measure's unit; a run's loss at the start if it ended worse.

  A diverged run counts as the loss at its start, and a seed without a finished run as NaN: neither leaves a mean
  better than it was.
  """
  by_seed = {run.seed: run for run in found.of(variant)}
  return np.array([_capped(found, by_seed[seed]) if seed in by_seed else np.nan for seed in found.experiment.seeds])


def losses_over_rates(found: ExperimentRuns, name: str, rates: Sequence[float]) -> np.ndarray:
  """`final_losses` of one of the names at each rate, (seeds, rates)."""
  return np.stack([final_losses(found, at(name, rate)) for rate in rates], 1)


def _capped(found: ExperimentRuns, run: RecordedRun) -> float:
  start = run.metrics[TRAIN_LOSS].iloc[0] / (math.log(2) if found.metric.unit == BITS.unit else 1)
  final = run.final(found.metric)
  return float(start if final is None else min(final, start))


def sensitivity(losses: np.ndarray) -> np.ndarray:
  """Mean over the rates of the loss less the best, by seed: 0 for a flat curve (section 2.3)."""
  return np.mean(losses - np.min(losses, 1, keepdims=True), 1)


def draw_over_rates(
  axes: 'Axes',
  rates: Sequence[float],
  losses: Sequence[Sequence[float]],
  name: str,
  colour: str,
  marker: str = 'o',
  linestyle: str = '-',
) -> None:
  """Draws losses against rates, on a logarithmic axis: seeds as points, their means as a line.

  Args:
    axes: to draw in.
    rates: of the columns.
    losses: (seeds, rates).
    name: of the line in the legend.
    colour: of points and line.
    marker: of the points.
    linestyle: of the line.
  """
  values = np.array(losses, float)
  axes.plot(rates, values.T, marker, color=colour, ms=2.5, mew=0, alpha=0.5)
  axes.plot(rates, values.mean(0), linestyle, color=colour, lw=1.5, label=name, gid=name)
  axes.set(xlabel='learning rate', xscale='log')
