"""How tables, figures and messages format numbers, names, seeds and counts."""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from training.ideas import describe_idea

LONGEST_LINE = 28  # characters


def wrap_name(variant: str) -> str:
  """Breaks a variant's name into lines: at each + that joins changes, and where a line is too long for a figure."""
  parts = variant.replace('+', '\n+').split('\n')
  return '\n'.join(line for part in parts for line in textwrap.wrap(part, LONGEST_LINE, break_on_hyphens=False))


def format_compact(value: float) -> str:
  """Two significant digits: 4e-3, 1.5e-3, 0.02, 20."""
  if value and abs(value) < 0.01:
    mantissa, _, exponent = f'{value:.1e}'.partition('e')
    return f'{mantissa.removesuffix(".0")}e{int(exponent)}'
  return f'{value:.2g}' if abs(value) < 10 else f'{value:g}'


def format_difference(value: float) -> str:
  """A difference, always signed: +0.120."""
  return f'{value:+.3f}'


def format_interval(low: float, high: float, sign: str = '+') -> str:
  """An interval: [+0.090, +0.150]; with sign='-', which signs only negative numbers, [0.090, 0.150]."""
  return f'[{low:{sign}.3f}, {high:{sign}.3f}]'


def describe_failures(runs: Mapping[str, int]) -> list[str]:
  """The number of runs with each kind of failure: ['2 failed to learn', '1 diverged']."""
  return [f'{runs[status]} {status.replace("_", " ")}' for status in ('failed_to_learn', 'diverged') if runs[status]]


def join_phrases(phrases: Sequence[str], limit: int) -> str:
  """Joins phrases with commas; beyond `limit` of them, gives their number and points to summary.json."""
  more = [f'and {len(phrases) - limit} more (see summary.json)'] if len(phrases) > limit else []
  return ', '.join([*phrases[:limit], *more])


def format_setting(value: Any) -> str:
  """A setting's value; only the first eight digits of a long hexadecimal checksum."""
  if isinstance(value, str) and len(value) >= 16 and all(character in '0123456789abcdef' for character in value):
    return value[:8]
  if isinstance(value, str) and re.fullmatch('.* sha256 [0-9a-f]{64}', value):
    return describe_idea(value)
  return 'not recorded' if value is None else "''" if value == '' else str(value)


def format_seeds(seeds: Iterable[int]) -> str:
  """Seeds with ranges: seed 3, seeds 0-2, seeds 0, 2-4."""
  ordered = sorted(seeds)
  ranges: list[list[int]] = []
  for seed in ordered:
    if ranges and seed == ranges[-1][-1] + 1:
      ranges[-1].append(seed)
    else:
      ranges.append([seed])
  parts = [f'{group[0]}-{group[-1]}' if len(group) > 2 else ', '.join(map(str, group)) for group in ranges]
  return ('seed ' if len(ordered) == 1 else 'seeds ') + ', '.join(parts)


def format_count(value: int | None) -> str:
  """An integer: 624,960; a dash if the runs of a variant differ in it."""
  return '-' if value is None else f'{value:,}'


def format_p_value(value: float) -> str:
  """0.032, or <0.001."""
  return '<0.001' if value < 0.001 else f'{value:.3f}'
