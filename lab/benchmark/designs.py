"""The cost of each residual design: time and memory of a training step, relative to pre-norm."""

from collections.abc import Sequence

from rich.table import Table

from lab.benchmark.cases import SIZES, training_case
from lab.benchmark.result_table import Row, result_table
from lab.benchmark.trials import run_trials
from model.connections import CONNECTIONS
from model.counts import num_parameters

REFERENCE = 'pre'
AT_ONCE = 3  # designs whose processes are alive at a time, beside the reference's: each holds a training state


def designs_table(sizes: Sequence[str], trials: int, core: int | None, connections: Sequence[str] = ()) -> Table:
  """Time and memory of a training step of each design, relative to `pre`, for each size.

  Args:
    sizes: keys of SIZES.
    trials: the number of alternating trials.
    core: the only core to use; None: all.
    connections: settings of model.connection, such as `hyper_connections:streams=2`; empty: all, without options.

  Raises:
    ConfigError: if one of them is invalid.
  """
  rows = []
  others = [name for name in connections or CONNECTIONS if name != REFERENCE]
  for size in sizes:
    configs = {name: SIZES[size].replace({'model.connection': name}) for name in (REFERENCE, *others)}
    for first in range(0, len(others), AT_ONCE):
      names = others[first : first + AT_ONCE]
      cases = [training_case(name, configs[name], (core,)) for name in (REFERENCE, *names)]
      results = run_trials(cases, trials)
      rows += [
        Row(
          result,
          group=size if result is results[0] else '',
          reference=results[0],
          parameters=num_parameters(configs[result.case.name].model),
        )
        for result in results
        if result is not results[0] or first == 0  # the reference is listed once
      ]
  return result_table(f'training steps of the residual designs; reference: {REFERENCE}, in the same trials', rows)
