"""Variants over a grid of learning rates, and their final losses with diverged runs counted.

Wortsman et al. 2023, Small-scale proxies for large-scale Transformer training instabilities, section 2.3.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lab.analysis import wording
from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import BITS, RecordedRun
from lab.core.experiment import Changes
from training.metric_names import TRAIN_LOSS

if TYPE_CHECKING:  # matplotlib takes a second to import
  from matplotlib.axes import Axes


def variants_by_rate(settings: Mapping[str, Changes], rates: Sequence[float]) -> dict[str, Changes]:
  """Every setting at every learning rate: {'pre_0.001': {..., 'optimizer.learning_rate': 0.001}}."""
  return {
    variant_name(setting, rate): {**changes, 'optimizer.learning_rate': rate}
    for setting, changes in settings.items()
    for rate in rates
  }


def variant_name(setting: str, rate: float) -> str:
  """The name of a variant: its setting and learning rate."""
  return f'{setting}_{rate:g}'


def final_losses(found: ExperimentRuns, variant: str) -> np.ndarray:
  """The final loss of a variant by seed, (seeds,), in the unit of the experiment's metric.

  A run that diverged or ended worse than it started counts with its initial loss, and a seed without a finished run
  as NaN, so that neither can improve the mean.
  """
  by_seed = {run.seed: run for run in found.of(variant)}
  return np.array([
    _capped_loss(found, by_seed[seed]) if seed in by_seed else np.nan for seed in found.experiment.seeds
  ])  # fmt: skip


def losses_by_rate(found: ExperimentRuns, setting: str, rates: Sequence[float]) -> np.ndarray:
  """`final_losses` of a setting at each rate, (seeds, rates)."""
  return np.stack([final_losses(found, variant_name(setting, rate)) for rate in rates], 1)


def _capped_loss(found: ExperimentRuns, run: RecordedRun) -> float:
  start = run.metrics[TRAIN_LOSS].iloc[0] / (math.log(2) if found.metric.unit == BITS.unit else 1)
  final = run.final(found.metric)
  return float(start if final is None else min(final, start))


def sensitivity(losses: np.ndarray) -> np.ndarray:
  """Learning-rate sensitivity by seed: the mean over the rates of the loss minus the lowest loss (section 2.3)."""
  return np.mean(losses - np.min(losses, 1, keepdims=True), 1)


def plot_losses_by_rate(
  axes: 'Axes',
  rates: Sequence[float],
  losses: Sequence[Sequence[float]],
  name: str,
  colour: str,
  marker: str = 'o',
  linestyle: str = '-',
) -> None:
  """Plots losses against learning rates on a logarithmic axis: seeds as points, their means as a line.

  Args:
    axes: the axes to plot in.
    rates: the learning rate of each column of `losses`.
    losses: (seeds, rates).
    name: the label of the line.
    colour: the colour of the points and the line.
    marker: the marker of the points.
    linestyle: the style of the line.
  """
  values = np.array(losses, float)
  axes.plot(rates, values.T, marker, color=colour, ms=2.5, mew=0, alpha=0.5)
  axes.plot(rates, values.mean(0), linestyle, color=colour, lw=1.5, label=name, gid=name)
  axes.set(xlabel='learning rate', xscale='log')


def set_rate_ticks(axes: 'Axes', rates: Sequence[float]) -> None:
  """Puts a tick at each learning rate, and none in between."""
  axes.set_xticks(rates, [wording.format_compact(rate) for rate in rates])
  axes.minorticks_off()
