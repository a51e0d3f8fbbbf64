"""Parses the seeds of --seeds: 0,1,2 or 0-4 or 0-2,7."""

import re
from collections.abc import Sequence

from training.config import ConfigError

MAX_SEEDS = 10_000
_SEEDS = re.compile(r'([0-9]{1,20})(?:-([0-9]{1,20}))?')


def parse_seeds(texts: Sequence[str]) -> list[int]:
  """The seeds in a list of numbers and ranges, in order and without duplicates. A range includes both of its ends.

  Raises:
    ConfigError: if a text is neither a number nor a range, or a seed is too large, or there are too many.
  """
  seeds: dict[int, None] = {}
  for text in texts:
    match = _SEEDS.fullmatch(text.strip())
    flag = f'--seeds={",".join(texts)}'
    if match is None:
      raise ConfigError(f'{flag}: {text!r} is not a seed; write whole numbers or a range, as in --seeds=0,1,2 or 0-4')
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
      raise ConfigError(f'{flag}: the range {text} ends before it begins')
    if last >= 2**32:
      raise ConfigError(f'{flag}: a seed must be below {2**32}')
    if last - first >= MAX_SEEDS or len(seeds) > MAX_SEEDS:
      raise ConfigError(f'{flag}: more than {MAX_SEEDS} seeds')
    seeds |= dict.fromkeys(range(first, last + 1))
  return list(seeds)
