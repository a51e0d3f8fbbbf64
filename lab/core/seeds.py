"""Seeds as a person writes them: 0,1,2 or 0-4 or 0-2,7."""

import re
from collections.abc import Sequence

from training.config import ConfigError

MOST = 10_000
_SEEDS = re.compile(r'([0-9]{1,20})(?:-([0-9]{1,20}))?')


def parse_seeds(texts: Sequence[str]) -> list[int]:
  """The seeds that the parts of a list name, ranges with both ends; each once, in order.

  Raises:
    ConfigError: for what is neither a whole number nor a range.
  """
  seeds: dict[int, None] = {}
  for text in texts:
    match = _SEEDS.fullmatch(text.strip())
    shown = f'--seeds={",".join(texts)}'
    if match is None:
      raise ConfigError(f'{shown}: {text!r} is not a seed; write whole numbers or a range, as in --seeds=0,1,2 or 0-4')
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
      raise ConfigError(f'{shown}: the range {text} ends before it begins')
    if last >= 2**32:
      raise ConfigError(f'{shown}: a seed must be below {2**32}')
    if last - first >= MOST or len(seeds) > MOST:
      raise ConfigError(f'{shown}: these are more than {MOST} seeds')
    seeds |= dict.fromkeys(range(first, last + 1))
  return list(seeds)
