"""A verdict as a sentence: the difference with its interval, and the conditions under which it holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from lab.analysis.statistics import MOST_SEEDS, PairedComparison
from lab.analysis.wording import describe_failures, format_compact, format_difference, format_interval


def format_effect(comparison: PairedComparison, unit: str) -> str:
  """The paired difference with its interval: +0.120 [+0.090, +0.150] bits per byte."""
  if comparison.difference is None:
    return ''
  if comparison.low is None or comparison.high is None:
    return f'{format_difference(comparison.difference)} {unit}'
  return f'{format_difference(comparison.difference)} {format_interval(comparison.low, comparison.high)} {unit}'


def describe_conditions(own: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
  """The conditions of a verdict: learning rate 4e-3 (shared), warm-up 20 steps, initialisation fan_in and so on.

  Args:
    own: the variant's entry in the summary.
    baseline: the baseline's entry; settings that differ from the variant's are added in parentheses.
  """
  rate, theirs = format_compact(own['learning_rate']), format_compact(baseline['learning_rate'])
  notes = ['tuned'] if own['learning_rate_tuned'] else ['shared'] if rate == theirs else []
  if rate != theirs:
    notes.append(f'baseline {theirs}')
  parts = [f'learning rate {rate} ({"; ".join(notes)})']
  for name, key, unit in (('warm-up', 'warmup_steps', ' steps'), ('initialisation', 'initialisation', '')):
    differs = f' (baseline {baseline[key]})' if own[key] != baseline[key] else ''
    parts.append(f'{name} {own[key]}{unit}{differs}')
  return ', '.join(parts)


def verdict_sentence(comparison: PairedComparison, runs: Mapping[str, int], unit: str, where: str) -> str:
  """The verdict in words, with the conditions under which it holds.

  Args:
    comparison: the variant compared with the baseline.
    runs: the number of the variant's runs with each status.
    unit: the unit of the difference.
    where: the conditions, from `describe_conditions`.
  """
  verdict = comparison.verdict
  if verdict.startswith('unstable'):
    return _unstable(comparison, runs, unit, where)
  if comparison.difference is None:
    return f'{verdict}, at {where}'
  if verdict in ('better', 'worse') and comparison.low is not None and comparison.high is not None:
    low, high = sorted((abs(comparison.low), abs(comparison.high)))
    return f'{verdict} by {abs(comparison.difference):.3f} {format_interval(low, high, "-")} {unit} at {where}'
  if verdict == 'equivalent':
    return f'equivalent within {format_compact(comparison.margin)}: {format_effect(comparison, unit)} at {where}'
  towards = f', leaning towards {comparison.direction}' if comparison.direction else ''
  return f'{verdict}{towards}: {format_effect(comparison, unit)} at {where}{_more_seeds(comparison)}'


def _more_seeds(comparison: PairedComparison) -> str:
  if comparison.n < 2:
    return '; an interval needs at least two seeds'
  if comparison.seeds_to_settle is None:
    return f'; a verdict would need more than {MOST_SEEDS:,} seeds'
  return f'; a verdict would need about {comparison.seeds_to_settle} seeds'


def _unstable(comparison: PairedComparison, runs: Mapping[str, int], unit: str, where: str) -> str:
  text = f'{comparison.verdict}: {" and ".join(describe_failures(runs)) or "every run learned"} at {where}'
  if comparison.difference is None:
    return f'{text}; in no pair did both runs reach the last step'
  pairs = 'the only pair' if comparison.n == 1 else f'the {comparison.n} pairs'
  return f'{text}; {format_effect(comparison, unit)} over {pairs} in which both runs reached the last step'


def describe_provenance_differences(names: Sequence[str]) -> str:
  """The end of a sentence that names provenance which differs from the baseline's: device, versions, code."""
  return f"; provenance differs from the baseline's: {', '.join(names)} (see the notes)" if names else ''
