"""Numbers and verdicts as a person reads them."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.statistics import Comparison

LONGEST_LINE = 28  # characters


def broken(variant: str) -> str:
  """A variant's name, a line for each of the changes that a grid joins by +, and none too long for a figure."""
  parts = variant.replace('+', '\n+').split('\n')
  return '\n'.join(line for part in parts for line in textwrap.wrap(part, LONGEST_LINE, break_on_hyphens=False))


def short(value: float) -> str:
  """Two significant digits: 4e-3, 1.5e-3, 0.02, 20."""
  if value and abs(value) < 0.01:
    mantissa, _, exponent = f'{value:.1e}'.partition('e')
    return f'{mantissa.removesuffix(".0")}e{int(exponent)}'
  return f'{value:.2g}' if abs(value) < 10 else f'{value:g}'


def signed(value: float) -> str:
  """A difference, always with its sign: +0.120."""
  return f'{value:+.3f}'


def limits(low: float, high: float, sign: str = '+') -> str:
  """An interval: [+0.090, +0.150], or with sign='-' (only where needed) [0.090, 0.150]."""
  return f'[{low:{sign}.3f}, {high:{sign}.3f}]'


def effect(comparison: Comparison, unit: str) -> str:
  """The paired difference with its interval: +0.120 [+0.090, +0.150] bits per byte."""
  if comparison.difference is None:
    return ''
  if comparison.low is None or comparison.high is None:
    return f'{signed(comparison.difference)} {unit}'
  return f'{signed(comparison.difference)} {limits(comparison.low, comparison.high)} {unit}'


def conditions(own: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
  """What a verdict holds for: learning rate 4e-3 (shared), warm-up 20, fan_in with depth scale.

  Args:
    own: the variant's entry in the summary.
    baseline: the baseline's; where it was run otherwise, that is said in brackets.
  """
  rate, theirs = short(own['learning_rate']), short(baseline['learning_rate'])
  notes = ['tuned'] if own['learning_rate_tuned'] else ['shared'] if rate == theirs else []
  if rate != theirs:
    notes.append(f'baseline {theirs}')
  parts = [f'learning rate {rate} ({"; ".join(notes)})']
  for prefix, key in (('warm-up ', 'warmup_steps'), ('', 'initialisation')):
    differs = f' (baseline {baseline[key]})' if own[key] != baseline[key] else ''
    parts.append(f'{prefix}{own[key]}{differs}')
  return ', '.join(parts)


def sentence(comparison: Comparison, runs: Mapping[str, int], unit: str, where: str) -> str:
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
    return f'{verdict} by {abs(comparison.difference):.3f} {limits(low, high, "-")} {unit} at {where}'
  if verdict == 'equivalent':
    return f'equivalent within {short(comparison.margin)}: {effect(comparison, unit)} at {where}'
  towards = f', in the direction of {comparison.direction}' if comparison.direction else ''
  return f'{verdict}{towards}: {effect(comparison, unit)} at {where}{_more_seeds(comparison)}'


def _more_seeds(comparison: Comparison) -> str:
  if comparison.n < 2:
    return '; an interval needs two seeds or more'
  if comparison.seeds_to_settle is None:
    return '; more seeds would hardly settle it'
  return f'; about {comparison.seeds_to_settle} seeds would settle it'


def _unstable(comparison: Comparison, runs: Mapping[str, int], unit: str, where: str) -> str:
  text = f'{comparison.verdict}: {" and ".join(failures(runs)) or "every run learned"} at {where}'
  if comparison.difference is None:
    return f'{text}; no pair of runs ended in both'
  pairs = 'the one pair' if comparison.n == 1 else f'the {comparison.n} pairs'
  return f'{text}; {effect(comparison, unit)} over {pairs} of runs that both ended'


def failures(runs: Mapping[str, int]) -> list[str]:
  """How many runs failed in which way: ['2 failed to learn', '1 diverged']."""
  return [f'{runs[status]} {status.replace("_", " ")}' for status in ('failed_to_learn', 'diverged') if runs[status]]


def some(phrases: Sequence[str], most: int) -> str:
  """Phrases as one; of many the first, and how many there are more."""
  more = [f'and {len(phrases) - most} more (summary.json)'] if len(phrases) > most else []
  return ', '.join([*phrases[:most], *more])


def made_apart(names: Sequence[str]) -> str:
  """What ends the sentence of a variant whose runs were made otherwise than the baseline's, beside its settings."""
  return f'; unlike the baseline in {", ".join(names)} (see the notes)' if names else ''


def count(value: int | None) -> str:
  """A whole number: 624,960; a dash where the runs of a variant differ in it."""
  return '-' if value is None else f'{value:,}'


def p_value(value: float) -> str:
  """0.032, or <0.001."""
  return '<0.001' if value < 0.001 else f'{value:.3f}'
