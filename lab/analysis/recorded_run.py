"""A finished run as read from its directory, and the metrics that runs are compared by."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from training.metric_names import VALIDATION_BITS, VALIDATION_LOSS

MARGIN_BITS = 0.02  # bits per byte; smaller differences are considered negligible
MARGIN_NATS = 0.014  # nats per token, for data without bytes


@dataclasses.dataclass(frozen=True)
class Score:
  """The outcome of a run, for paired comparisons.

  Attributes:
    value: the final loss; None if the run diverged.
    learned: whether the run completed and learned more than token frequencies; see training.evaluation.FAILED_TO_LEARN.
  """

  value: float | None
  learned: bool = True


@dataclasses.dataclass(frozen=True)
class Metric:
  """The metric that variants are compared by.

  Attributes:
    column: its final value in result.json.
    curve: its name in metrics.jsonl, where it is measured on a fixed part of the validation split.
    unit: its unit, as printed.
    margin: smaller differences are considered negligible.
    split: the split of the final value.
  """

  column: str
  curve: str
  unit: str
  margin: float
  split: str = 'validation'


BITS = Metric('val_bits_per_byte', VALIDATION_BITS, 'bits per byte', MARGIN_BITS)
NATS = Metric('val_loss', VALIDATION_LOSS, 'nats a token', MARGIN_NATS)
# Learning rates tuned on the validation split are evaluated on the test split.
ON_TEST = {
  BITS: dataclasses.replace(BITS, column='test_bits_per_byte', split='test'),
  NATS: dataclasses.replace(NATS, column='test_loss', split='test'),
}


@dataclasses.dataclass(frozen=True)
class RecordedRun:
  """A finished run.

  Attributes:
    directory: the run directory.
    result: result.json.
    config: config.json, flat.
    metrics: metrics.jsonl; empty if it cannot be read.
  """

  directory: Path
  result: Mapping[str, Any]
  config: Mapping[str, Any]
  metrics: pd.DataFrame

  @property
  def variant(self) -> str:
    """The name of the variant, as reports show it."""
    return self.result['variant']

  @property
  def folder_variant(self) -> str:
    """The name of the variant's folder, which differs from `variant` if the variant has a label."""
    return self.result.get('folder_variant', self.variant)

  @property
  def seed(self) -> int:
    """The seed, which pairs this run with a run of every other variant."""
    return self.result['seed']

  @property
  def status(self) -> str:
    """`completed`, `diverged` or `failed_to_learn`."""
    return self.result['status']

  @property
  def learned(self) -> bool:
    """Whether the run reached its last step and learned more than token frequencies."""
    return self.status == 'completed'

  @property
  def tokens_per_step(self) -> int:
    """Tokens in a global batch."""
    return self.config['run.batch_size'] * self.config['data.sequence_length']

  def final(self, metric: Metric) -> float | None:
    """The value after the last step; None if the run diverged."""
    return self.result.get(metric.column) if self.status != 'diverged' else None

  def score(self, metric: Metric) -> Score:
    """The outcome of the run, for a paired comparison."""
    return Score(self.final(metric), self.learned)

  def curve(self, metric: Metric) -> pd.Series:
    """The validation curve, indexed by training tokens."""
    if metric.curve not in self.metrics:
      return pd.Series(dtype='float64')
    values = self.metrics[metric.curve].dropna()
    return values.set_axis(values.index * self.tokens_per_step)


def mean_curve(runs: Iterable[RecordedRun], metric: Metric) -> pd.Series:
  """The mean validation curve over seeds, at their common points; without runs that diverged or have no curve."""
  curves = [curve for run in runs if run.final(metric) is not None and len(curve := run.curve(metric))]
  return pd.concat(curves, axis=1).dropna().mean(axis=1) if curves else pd.Series(dtype='float64')
