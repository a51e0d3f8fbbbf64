"""One finished run as its directory records it, and the metrics that runs are compared by."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from training.metric_names import VALIDATION_BITS, VALIDATION_LOSS

MARGIN_BITS = 0.02  # bits per byte: a difference up to this counts as none
MARGIN_NATS = 0.014  # nats a token, where there are no bytes


@dataclasses.dataclass(frozen=True)
class Score:
  """How a run ended.

  Attributes:
    value: its final loss; None if it diverged.
    learned: whether it ended better than the unigram entropy.
  """

  value: float | None
  learned: bool = True


@dataclasses.dataclass(frozen=True)
class Metric:
  """What variants are compared by.

  Attributes:
    column: the final value, in result.json.
    curve: the name of the same over a fixed part of the split, in metrics.jsonl.
    unit: as it is printed.
    margin: differences up to this count as none.
    split: that the final value is of; the curve is of `validation`.
  """

  column: str
  curve: str
  unit: str
  margin: float
  split: str = 'validation'


BITS = Metric('val_bits_per_byte', VALIDATION_BITS, 'bits per byte', MARGIN_BITS)
NATS = Metric('val_loss', VALIDATION_LOSS, 'nats a token', MARGIN_NATS)
# Where the validation split has chosen the learning rates, the test split says what they are worth.
ON_TEST = {
  BITS: dataclasses.replace(BITS, column='test_bits_per_byte', split='test'),
  NATS: dataclasses.replace(NATS, column='test_loss', split='test'),
}


@dataclasses.dataclass(frozen=True)
class RecordedRun:
  """One run, as its directory tells it.

  Attributes:
    directory: where it is.
    result: its result.json.
    config: its config.json, flat.
    metrics: its metrics.jsonl; empty if it cannot be read.
  """

  directory: Path
  result: Mapping[str, Any]
  config: Mapping[str, Any]
  metrics: pd.DataFrame

  @property
  def variant(self) -> str:
    """The name of what was changed."""
    return self.result['variant']

  @property
  def folder_variant(self) -> str:
    """The variant's name in its folder, which it may not be shown under."""
    return self.result.get('folder_variant', self.variant)

  @property
  def seed(self) -> int:
    """What pairs this run with one of every other variant."""
    return self.result['seed']

  @property
  def status(self) -> str:
    """`completed`, `diverged` or `failed_to_learn`."""
    return self.result['status']

  @property
  def learned(self) -> bool:
    """Whether it went to its last step and beat the unigram entropy."""
    return self.status == 'completed'

  @property
  def tokens_per_step(self) -> int:
    """Tokens in a global batch."""
    return self.config['run.batch_size'] * self.config['data.sequence_length']

  def final(self, metric: Metric) -> float | None:
    """The value after the last step; None for a run that never got there."""
    return self.result.get(metric.column) if self.status != 'diverged' else None

  def score(self, metric: Metric) -> Score:
    """How the run ended, for a comparison."""
    return Score(self.final(metric), self.learned)

  def curve(self, metric: Metric) -> pd.Series:
    """The validation curve, indexed by tokens seen."""
    if metric.curve not in self.metrics:
      return pd.Series(dtype='float64')
    values = self.metrics[metric.curve].dropna()
    return values.set_axis(values.index * self.tokens_per_step)


def mean_curve(runs: Iterable[RecordedRun], metric: Metric) -> pd.Series:
  """The mean validation curve over seeds, at the points that all have; runs that diverged or have none are left out."""
  curves = [curve for run in runs if run.final(metric) is not None and len(curve := run.curve(metric))]
  return pd.concat(curves, axis=1).dropna().mean(axis=1) if curves else pd.Series(dtype='float64')
