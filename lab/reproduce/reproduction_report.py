"""The reproduction report: verdicts as tables for the terminal, and report.html with every claim and its figure."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from lab.cli.tables import new_table
from lab.core.reproduction import Reproduction
from lab.figures import figure_style
from lab.report import page
from lab.reproduce.claim_verdict import Comparison, compare_all, overall_verdict
from lab.reproduce.plotted_data import plotted_data
from lab.reproduce.record import Record
from training.config import ConfigError
from training.files import write_atomically, write_json

COLOURS = {'reproduced': 'green', 'not reproduced': 'red', 'inconclusive': 'yellow'}


@dataclasses.dataclass(frozen=True)
class ReproductionResult:
  """A reproduction with its record and verdict.

  Attributes:
    reproduction: its declaration.
    record: the content of its measured.json.
    comparisons: a comparison for each expected value.
    image: its figure as a data URL; empty before it is drawn.
  """

  reproduction: Reproduction
  record: Record
  comparisons: tuple[Comparison, ...]
  image: str = ''

  @property
  def verdict(self) -> str:
    """The worst verdict of the comparisons."""
    return overall_verdict(self.comparisons)

  @property
  def time(self) -> str:
    """The time it took: `12 s`, or `36 runs of 38 s`."""
    seconds, runs = self.record['seconds'], self.record.get('runs')
    return f'{runs} runs of {seconds / runs:.0f} s' if runs else f'{seconds:.0f} s'


def evaluate(reproduction: Reproduction, record: Record, image: str = '') -> ReproductionResult:
  """Compares the measured values of a record with the expected ones.

  Raises:
    ConfigError: if the record lacks an expected value.
  """
  missing = [expected.quantity for expected in reproduction.expected if expected.quantity not in record['measured']]
  if missing:
    raise ConfigError(f'{reproduction.name}: REPRODUCTION.expected names {missing[0]!r}, which is not measured')
  return ReproductionResult(reproduction, record, tuple(compare_all(reproduction, record['measured'])), image)


def draw(reproduction: Reproduction, record: Record, directory: Path) -> ReproductionResult:
  """Evaluates a reproduction and draws its figure, from the record alone.

  Args:
    reproduction: its declaration.
    record: the content of its measured.json.
    directory: receives <name>.png, .pdf, .svg and .json.
  """
  figure = figure_style.styled(reproduction.draw)(record['measured'])
  figure_style.save(figure, directory, reproduction.name)
  provenance = {key: value for key, value in record.items() if key != 'measured'}
  write_json(directory / f'{reproduction.name}.json', {**provenance, 'drawn': plotted_data(figure)})
  return load_drawn(reproduction, record, directory)


def load_drawn(reproduction: Reproduction, record: Record, directory: Path) -> ReproductionResult:
  """Evaluates a reproduction, with the figure that `draw` has saved; takes the same arguments as `draw`."""
  return evaluate(reproduction, record, page.embed(directory / f'{reproduction.name}.svg'))


def detail_table(result: ReproductionResult) -> Table:
  """Expected and measured values of one reproduction, one row each, for a terminal of 100 columns."""
  title = Text.assemble((result.reproduction.name, 'bold'), f': {result.reproduction.claim}')
  table = new_table(title)
  for column in ('quantity', 'expected', 'measured', 'verdict'):
    table.add_column(column, overflow='fold')
  for one in result.comparisons:
    verdict = Text(one.verdict, style=COLOURS[one.verdict])
    table.add_row(Text(one.description), Text(one.expected), Text(one.measured), verdict)
  return table


def summary_table(results: Sequence[ReproductionResult]) -> Table:
  """One row for each reproduction."""
  table = new_table()
  for column in ('reproduction', 'claim', 'verdict', 'time'):
    table.add_column(column, justify='right' if column == 'time' else 'left')
  for result in results:
    reproduced = sum(one.verdict == 'reproduced' for one in result.comparisons)
    verdict = Text(f'{result.verdict}\n{reproduced} of {len(result.comparisons)} values', style=COLOURS[result.verdict])
    table.add_row(result.reproduction.name, Text(result.reproduction.claim), verdict, result.time)
  return table


def write_report(results: Sequence[ReproductionResult], notes: Sequence[str], path: Path) -> Path:
  """Writes the report as a single HTML file.

  Args:
    results: the reproductions, in the order of the report.
    notes: lines on reproductions that failed or cannot be shown.
    path: the file to write.
  """
  counts: dict[str, Any] = {verdict: sum(result.verdict == verdict for result in results) for verdict in COLOURS}
  return write_atomically(path, page.render('reproduction_report.html.j2', results=results, counts=counts, notes=notes))
