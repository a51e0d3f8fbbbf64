"""The overhead of each inspection level in a training step."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from lab.benchmark.cases import SIZES, training_case
from lab.benchmark.result_table import Row, result_table
from lab.benchmark.trials import run_trials

# The first level is the reference. A logged step (by default 1 in 10) also computes the norms of each parameter.
LEVELS: Mapping[str, dict[str, Any]] = {
  'off': {'inspect.level': 'off'},
  'norms, step not logged': {'inspect.level': 'norms', 'run.log_every': 10**9},
  'norms, every step logged': {'inspect.level': 'norms', 'run.log_every': 1},
  'full, every step logged': {'inspect.level': 'full', 'run.log_every': 1},
}


def inspection_table(sizes: Sequence[str], trials: int, iterations: int, core: int | None) -> Table:
  """Time and memory of a training step at each level, relative to inspect.level=off, for each size."""
  rows, averages = [], []
  for size in sizes:
    cases = [training_case(level, SIZES[size].replace(changes), (core,)) for level, changes in LEVELS.items()]
    results = run_trials(cases, trials, iterations)
    rows += [Row(result, group='' if k else size, reference=results[0]) for k, result in enumerate(results)]
    not_logged, logged = (result.ratio(results[0]) for result in results[1:3])
    averages.append(f'{size} {not_logged + (logged - not_logged) / 10:.3f}')
  return result_table(
    'training steps with inspection; reference: inspect.level=off\n'
    f'ratio of norms with 1 step in 10 logged: {", ".join(averages)}',
    rows,
  )
