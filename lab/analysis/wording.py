"""Numbers, names and counts as tables, figures and messages spell them."""

import textwrap
from collections.abc import Mapping, Sequence

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


def failures(runs: Mapping[str, int]) -> list[str]:
  """How many runs failed in which way: ['2 failed to learn', '1 diverged']."""
  return [f'{runs[status]} {status.replace("_", " ")}' for status in ('failed_to_learn', 'diverged') if runs[status]]


def some(phrases: Sequence[str], most: int) -> str:
  """Phrases as one; of many the first, and how many there are more."""
  more = [f'and {len(phrases) - most} more (summary.json)'] if len(phrases) > most else []
  return ', '.join([*phrases[:most], *more])


def count(value: int | None) -> str:
  """A whole number: 624,960; a dash where the runs of a variant differ in it."""
  return '-' if value is None else f'{value:,}'


def p_value(value: float) -> str:
  """0.032, or <0.001."""
  return '<0.001' if value < 0.001 else f'{value:.3f}'
