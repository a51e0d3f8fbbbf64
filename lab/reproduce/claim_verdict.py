"""Compares measured with expected values, and derives the verdict: reproduced, not reproduced or inconclusive."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.analysis import statistics
from lab.core.reproduction import Expected, Measured, Reproduction, format_value

VERDICTS = ('reproduced', 'inconclusive', 'not reproduced')  # from best to worst


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One expected value and the value measured for it.

  Attributes:
    description: the description of the quantity.
    expected: the expected value as text.
    measured: the measured value as text.
    value: the measured value, averaged over the seeds if there are any; None if it is not finite.
    seeds: the number of seeds; None for a deterministic value.
    verdict: see `compare`.
  """

  description: str
  expected: str
  measured: str
  value: Any
  seeds: int | None
  verdict: str


def compare(expected: Expected, measured: Measured) -> Comparison:
  """Compares one expected value with the measured one.

  A deterministic value is `reproduced` if it lies within the bounds, and `not reproduced` otherwise. For a value over
  seeds, the 95% Student interval of the mean decides: `reproduced` if it lies within the bounds, `not reproduced` if it
  lies outside them, and `inconclusive` if it contains one. The verdict on an array is that on its worst element.
  """
  values = np.array(measured[expected.quantity], float)  # None becomes NaN
  if not np.isfinite(values).all():
    return Comparison(expected.description, expected.text, 'not finite', None, None, 'not reproduced')
  if not expected.over_seeds:
    within = np.all((values >= expected.low) & (values <= expected.high))
    verdict = 'reproduced' if within else 'not reproduced'
    return Comparison(
      expected.description, expected.text, format_value(values.tolist()), values.tolist(), None, verdict
    )
  mean, seeds = values.mean(0), len(values)
  if seeds < 2:
    return Comparison(
      expected.description, expected.text, f'{format_value(mean)} (one seed)', mean.tolist(), 1, 'inconclusive'
    )
  limits = np.array([statistics.interval(column.tolist()) for column in values.reshape(seeds, -1).T])
  low, high = limits.T.reshape(2, *mean.shape)
  outside = (high < expected.low) | (low > expected.high)
  within = (low >= expected.low) & (high <= expected.high)
  verdict = 'not reproduced' if np.any(outside) else 'reproduced' if np.all(within) else 'inconclusive'
  text = format_value(mean.tolist()) + (
    f' [{format_value(float(low))}, {format_value(float(high))}]' if not mean.shape else ''
  )
  return Comparison(expected.description, expected.text, text, mean.tolist(), seeds, verdict)


def compare_all(reproduction: Reproduction, measured: Measured) -> list[Comparison]:
  """A comparison for each expected value, in the order of declaration."""
  return [compare(expected, measured) for expected in reproduction.expected]


def overall_verdict(comparisons: Sequence[Comparison]) -> str:
  """The verdict on a reproduction: the worst verdict of its comparisons."""
  return max((comparison.verdict for comparison in comparisons), key=VERDICTS.index)
