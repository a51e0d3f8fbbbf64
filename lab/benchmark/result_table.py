"""The table of benchmark results."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from rich.table import Table

from lab.benchmark.trials import Result
from lab.cli.tables import new_table


@dataclasses.dataclass(frozen=True)
class Row:
  """One row of the table: a result, and the numbers that its cells are computed from.

  Attributes:
    result: the measurements.
    group: the name of the group, in its first row; empty in the others.
    reference: the result that its ratios are relative to.
    parameters: the parameter count of the model.
    tokens: the tokens in an iteration of all workers.
    flops: the floating-point operations in an iteration of all workers.
    peak: the peak FLOP/s of its cores.
  """

  result: Result
  group: str = ''
  reference: Result | None = None
  parameters: int = 0
  tokens: int = 0
  flops: float = 0.0
  peak: float = 0.0


def _ratio(row: Row) -> str:
  return f'{row.result.ratio(row.reference):.3f}' if row.reference and row.result.seconds else ''


def _quartiles(row: Row) -> str:
  if row.reference is None or row.reference is row.result or not row.result.seconds:
    return ''
  low, high = np.percentile(row.result.ratios(row.reference), [25, 75])
  return f'{low:.3f} to {high:.3f}'


def _fact(name: str, scale: float, digits: int) -> Callable[[Row], str]:
  return lambda row: f'{row.result.facts[name] / scale:.{digits}f}' if name in row.result.facts else ''


COLUMNS: dict[str, Callable[[Row], str]] = {
  'group': lambda row: row.group,
  'case': lambda row: row.result.case.name,
  'parameters': lambda row: f'{row.parameters:,}' if row.parameters else '',
  'ms': lambda row: f'{row.result.median * 1e3:.1f}' if row.result.seconds else '',
  'ratio': _ratio,
  'quartiles': _quartiles,
  'tokens/s': lambda row: f'{row.tokens / row.result.median:,.0f}' if row.tokens else '',
  'GFLOP/s': lambda row: f'{row.flops / row.result.median / 1e9:.1f}' if row.flops else '',
  'of peak': lambda row: f'{row.flops / row.result.median / row.peak:.0%}' if row.peak else '',
  'compile s': _fact('compile_seconds', 1, 2),
  'temp. MB': _fact('temporary_bytes', 1e6, 1),
  'memory MB': lambda row: f'{row.result.peak_bytes / 1e6:.0f}',
}
NOTES = {
  'ms': 'median over alternating trials',
  'ratio': 'time relative to the reference, median over the trials',
  'temp. MB': 'temporaries of the program',
  'memory MB': 'peak of a process',
}


def result_table(title: str, rows: Sequence[Row]) -> Table:
  """One line for each row; columns without an entry are omitted."""
  cells = {name: [cell(row) for row in rows] for name, cell in COLUMNS.items()}
  columns = [name for name in COLUMNS if any(cells[name])]
  caption = '; '.join(f'{name}: {note}' for name, note in NOTES.items() if name in columns)
  table = new_table(title, columns, left=columns.index('case') + 1, caption=caption)
  for line in zip(*(cells[name] for name in columns), strict=True):
    table.add_row(*line)
  return table
