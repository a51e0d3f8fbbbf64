"""From what was measured to a verdict: `reproduced`, `not reproduced` or `inconclusive`, from the numbers alone."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.analysis import statistics
from lab.core.reproduction import Expected, Measured, Reproduction, spell

VERDICTS = ('reproduced', 'inconclusive', 'not reproduced')  # a reproduction has the worst of its findings


@dataclasses.dataclass(frozen=True)
class Finding:
  """One expected value beside what was measured.

  Attributes:
    says: what it is.
    expected, measured: as a person reads them.
    value: what was measured, the mean over seeds where there are seeds; None where it is not finite.
    seeds: how many; None for what is not random.
    verdict: see `judge`.
  """

  says: str
  expected: str
  measured: str
  value: Any
  seeds: int | None
  verdict: str


def judge(expected: Expected, measured: Measured) -> Finding:
  """Holds one expected value against what was measured.

  A value that is not random is `reproduced` if all of it lies within the bounds, else `not reproduced`. Over seeds, the
  95% Student interval of the mean decides: `reproduced` if it lies within the bounds, `not reproduced` if it lies
  outside them, else `inconclusive`. Of an array, the worst element counts.
  """
  values = np.array(measured[expected.quantity], float)  # None becomes NaN
  if not np.isfinite(values).all():
    return Finding(expected.says, expected.text, 'not finite', None, None, 'not reproduced')
  if not expected.over_seeds:
    within = np.all((values >= expected.low) & (values <= expected.high))
    verdict = 'reproduced' if within else 'not reproduced'
    return Finding(expected.says, expected.text, spell(values.tolist()), values.tolist(), None, verdict)
  mean, seeds = values.mean(0), len(values)
  if seeds < 2:
    return Finding(expected.says, expected.text, f'{spell(mean)} (one seed)', mean.tolist(), 1, 'inconclusive')
  limits = np.array([statistics.interval(column.tolist()) for column in values.reshape(seeds, -1).T])
  low, high = limits.T.reshape(2, *mean.shape)
  outside = (high < expected.low) | (low > expected.high)
  within = (low >= expected.low) & (high <= expected.high)
  verdict = 'not reproduced' if np.any(outside) else 'reproduced' if np.all(within) else 'inconclusive'
  text = spell(mean.tolist()) + (f' [{spell(float(low))}, {spell(float(high))}]' if not mean.shape else '')
  return Finding(expected.says, expected.text, text, mean.tolist(), seeds, verdict)


def judge_all(reproduction: Reproduction, measured: Measured) -> list[Finding]:
  """A finding for each expected value, in the order declared."""
  return [judge(expected, measured) for expected in reproduction.expected]


def overall(findings: Sequence[Finding]) -> str:
  """The worst verdict there is."""
  return max((finding.verdict for finding in findings), key=VERDICTS.index)
