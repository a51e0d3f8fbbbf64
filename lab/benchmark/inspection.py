"""What each level of inspection adds to a training step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from lab.benchmark.sizes import SIZES
from lab.benchmark.turns import prepare_step, take_turns
from lab.cli.tables import new_table

# What is compared with `off`. At a logged step the norms of each parameter are computed too: 1 step in 10 by default.
LEVELS: Mapping[str, dict[str, Any]] = {
  'off': {'inspect.level': 'off'},
  'norms, between logged steps': {'inspect.level': 'norms', 'run.log_every': 10**9},
  'norms, every step logged': {'inspect.level': 'norms', 'run.log_every': 1},
  'full, every step logged': {'inspect.level': 'full', 'run.log_every': 1},
}


def inspection_table(sizes: Sequence[str], turns: int, steps: int) -> Table:
  """What each level adds to a step of each size: time, by pairs of turns, and memory."""
  columns = ('size', 'level', 'ms a step', 'added', 'half of the turns', 'temporaries MB', 'added ')
  table = new_table('what inspection adds to a training step, compared with inspect.level=off', columns, left=2)
  for size in sizes:
    contenders = [prepare_step(level, SIZES[size].replace(changes)) for level, changes in LEVELS.items()]
    take_turns(contenders, turns, steps)
    off = contenders[0]
    for one in contenders:
      low, middle, high = np.percentile(np.array(one.seconds) / off.seconds - 1, [25, 50, 75])
      megabytes, more = f'{one.temporary_bytes / 1e6:.1f}', one.temporary_bytes / off.temporary_bytes - 1
      added = [f'{middle:+.1%}', f'{low:+.1%} to {high:+.1%}', megabytes, f'{more:+.1%}']
      if one is off:
        added = ['', '', megabytes, '']
      table.add_row(size if one is off else '', one.name, f'{one.median * 1e3:.1f}', *added)
    between, logged = (np.median(np.array(one.seconds) / off.seconds - 1) for one in contenders[1:3])
    table.add_row('', 'norms, 1 step in 10 logged', '', f'{between + (logged - between) / 10:+.1%}', '', '', '')
  return table
