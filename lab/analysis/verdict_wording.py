"""A verdict as a sentence: the difference with its interval, and the conditions it holds for."""

from collections.abc import Mapping, Sequence
from typing import Any

from lab.analysis.statistics import Comparison
from lab.analysis.wording import describe_failures, format_difference, format_interval, format_number


def format_effect(comparison: Comparison, unit: str) -> str:
  """The paired difference with its interval: +0.120 [+0.090, +0.150] bits per byte."""
  if comparison.difference is None:
    return ''
  if comparison.low is None or comparison.high is None:
    return f'{format_difference(comparison.difference)} {unit}'
  return f'{format_difference(comparison.difference)} {format_interval(comparison.low, comparison.high)} {unit}'


def describe_conditions(own: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
  """What a verdict holds for: learning rate 4e-3 (shared), warm-up 20, fan_in with depth scale.

  Args:
    own: the variant's entry in the summary.
    baseline: the baseline's; where it was run otherwise, that is said in brackets.
  """
  rate, theirs = format_number(own['learning_rate']), format_number(baseline['learning_rate'])
  notes = ['tuned'] if own['learning_rate_tuned'] else ['shared'] if rate == theirs else []
  if rate != theirs:
    notes.append(f'baseline {theirs}')
  parts = [f'learning rate {rate} ({"; ".join(notes)})']
  for prefix, key in (('warm-up ', 'warmup_steps'), ('', 'initialisation')):
    differs = f' (baseline {baseline[key]})' if own[key] != baseline[key] else ''
    parts.append(f'{prefix}{own[key]}{differs}')
  return ', '.join(parts)


def verdict_sentence(comparison: Comparison, runs: Mapping[str, int], unit: str, where: str) -> str:
  """The verdict in words, with what it holds for.

  Args:
    comparison: of the variant with the baseline.
    runs: how many of the variant's runs ended in each status.
    unit: of the difference.
    where: the conditions.
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
    return f'equivalent within {format_number(comparison.margin)}: {format_effect(comparison, unit)} at {where}'
  towards = f', in the direction of {comparison.direction}' if comparison.direction else ''
  return f'{verdict}{towards}: {format_effect(comparison, unit)} at {where}{_more_seeds(comparison)}'


def _more_seeds(comparison: Comparison) -> str:
  if comparison.n < 2:
    return '; an interval needs two seeds or more'
  if comparison.seeds_to_settle is None:
    return '; more seeds would hardly settle it'
  return f'; about {comparison.seeds_to_settle} seeds would settle it'


def _unstable(comparison: Comparison, runs: Mapping[str, int], unit: str, where: str) -> str:
  text = f'{comparison.verdict}: {" and ".join(describe_failures(runs)) or "every run learned"} at {where}'
  if comparison.difference is None:
    return f'{text}; no pair of runs ended in both'
  pairs = 'the one pair' if comparison.n == 1 else f'the {comparison.n} pairs'
  return f'{text}; {format_effect(comparison, unit)} over {pairs} of runs that both ended'


def describe_provenance_differences(names: Sequence[str]) -> str:
  """What ends the sentence of a variant whose runs were made otherwise than the baseline's, beside its settings."""
  return f'; unlike the baseline in {", ".join(names)} (see the notes)' if names else ''
