"""Statistics of paired runs, which share a seed: Student's t intervals, p-values and verdicts."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from lab.analysis.recorded_run import Score

LEVEL = 0.95  # of every interval; not adjusted for multiple comparisons
MOST_SEEDS = 1000  # the largest number of seeds that a report suggests for a verdict


@dataclasses.dataclass(frozen=True)
class PairedComparison:
  """A variant minus its baseline, over the seeds whose runs both reached the last step. Negative is better.

  Attributes:
    n: the number of pairs.
    difference: mean difference; None without a pair.
    low, high: 95% interval of the mean difference, Student's t; None with fewer than two pairs.
    p: of a two-sided paired t-test; None with fewer than two pairs.
    differences: by seed.
    margin: smaller differences are considered negligible.
    verdict: `better`, `worse` or `equivalent` if the interval lies entirely below, above or within the margin;
      otherwise `inconclusive`; `unstable (k of n learned)` if a run diverged or failed to learn.
    direction: `better` or `worse` if the interval excludes 0, otherwise empty.
    seeds_to_settle: for an inconclusive comparison, about how many seeds would give a verdict if mean and standard
      deviation stayed the same; None if more than MOST_SEEDS.
  """

  n: int
  difference: float | None
  low: float | None
  high: float | None
  p: float | None
  differences: Mapping[int, float]
  margin: float
  verdict: str
  direction: str
  seeds_to_settle: int | None


def compare_paired(variant: Mapping[int, Score], baseline: Mapping[int, Score], margin: float) -> PairedComparison:
  """Compares the runs of a variant with those of its baseline, seed by seed.

  Args:
    variant: the variant's scores by seed.
    baseline: the baseline's scores by seed.
    margin: smaller differences are considered negligible.
  """
  differences = {}
  for seed in sorted(set(variant) & set(baseline)):
    a, b = variant[seed].value, baseline[seed].value
    if a is not None and b is not None:
      differences[seed] = a - b
  values = list(differences.values())
  n, mean, limits = len(values), float(np.mean(values)) if values else None, interval(values)
  low, high = limits or (None, None)
  direction = '' if low is None or high is None else 'better' if high < 0 else 'worse' if low > 0 else ''
  verdict, seeds = _unstable(variant, baseline), None
  if not verdict:
    verdict = _verdict(n, low, high, margin)
    if verdict == 'inconclusive':
      seeds = _seeds_to_settle(float(np.mean(values)), float(np.std(values, ddof=1)), margin)
  return PairedComparison(n, mean, low, high, p_value(values), differences, margin, verdict, direction, seeds)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
  """The 95% interval of the mean by Student's t, valid for any n; None for fewer than two values."""
  n = len(values)
  if n < 2:
    return None
  mean, half = np.mean(values), half_width(values)
  return float(mean - half), float(mean + half)


def half_width(values) -> np.ndarray:
  """Half the width of the 95% interval of the mean over the first axis, by Student's t; NaN for fewer than two."""
  n = len(values)
  if n < 2:
    return np.full(np.shape(values)[1:], math.nan)
  return _quantile(n) * np.std(values, axis=0, ddof=1) / math.sqrt(n)


def p_value(differences: Sequence[float]) -> float | None:
  """Two-sided p-value of a paired t-test; None for fewer than two differences.

  If all differences are equal, their standard error is 0: then p is 1 if they are 0, otherwise 0.
  """
  n = len(differences)
  if n < 2:
    return None
  mean, error = abs(np.mean(differences)), np.std(differences, ddof=1) / math.sqrt(n)
  if error == 0:
    return 1.0 if mean == 0 else 0.0
  return float(2 * stats.t.sf(mean / error, n - 1))


def holm(p_values: Sequence[float]) -> list[float]:
  """Holm's adjustment of several p-values, which bounds the family-wise error rate.

  The smallest of m p-values is multiplied by m, the next by m - 1, and so on; adjusted values never decrease.
  """
  adjusted, largest = [0.0] * len(p_values), 0.0
  for rank, index in enumerate(np.argsort(p_values, kind='stable')):
    largest = max(largest, (len(p_values) - rank) * p_values[index])
    adjusted[index] = min(1.0, largest)
  return adjusted


def power_law_exponent(sizes: Sequence[float], values: ArrayLike) -> np.ndarray:
  """The exponent of the power law that fits each row, (rows,): the slope of log value against log size.

  Args:
    sizes: (sizes,), above 0.
    values: (rows, sizes), above 0.
  """
  return np.polyfit(np.log(sizes), np.log(np.asarray(values)).T, 1)[0]


def token_share(tokens: Sequence[float], curve: Sequence[float], target: float) -> float | None:
  """The share of all tokens after which a validation curve stays at or below a target; None if it ends above.

  The curve is interpolated linearly in tokens.
  """
  above = np.flatnonzero(np.asarray(curve) > target)
  if not len(above):
    return float(tokens[0] / tokens[-1])
  last = int(above[-1])
  if last == len(curve) - 1:
    return None
  fraction = (curve[last] - target) / (curve[last] - curve[last + 1])
  return float((tokens[last] + fraction * (tokens[last + 1] - tokens[last])) / tokens[-1])


def _verdict(n: int, low: float | None, high: float | None, margin: float) -> str:
  if low is None or high is None:
    return 'inconclusive (one seed)' if n else 'inconclusive (no pair of runs)'
  if high < -margin:
    return 'better'
  if low > margin:
    return 'worse'
  return 'equivalent' if -margin <= low and high <= margin else 'inconclusive'


def _unstable(variant: Mapping[int, Score], baseline: Mapping[int, Score]) -> str:
  """The verdict if a run of either variant diverged or failed to learn, otherwise empty."""
  shares = []
  for name, scores in (('', variant), ('baseline: ', baseline)):
    learned = sum(score.learned for score in scores.values())
    if learned < len(scores):
      shares.append(f'{name}{learned} of {len(scores)} learned')
  return f'unstable ({"; ".join(shares)})' if shares else ''


def _seeds_to_settle(mean: float, deviation: float, margin: float) -> int | None:
  """The smallest number of seeds whose interval would lie on one side of the nearer margin; None if over MOST_SEEDS."""
  n = np.arange(2, MOST_SEEDS + 1)
  conclusive = _quantile(n) * deviation / np.sqrt(n) < abs(abs(mean) - margin)
  return int(n[conclusive.argmax()]) if conclusive.any() else None


def _quantile(n):
  return stats.t.ppf((1 + LEVEL) / 2, n - 1)
