"""What a person reads at the end of `reproduce`: the table, and report.html with everything in one file."""

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
from lab.reproduce.figure_data import drawn_numbers
from lab.reproduce.record import Record
from lab.reproduce.verdicts import Finding, judge_all, overall
from training.config import ConfigError
from training.files import write_atomically, write_json

COLOURS = {'reproduced': 'green', 'not reproduced': 'red', 'inconclusive': 'yellow'}


@dataclasses.dataclass(frozen=True)
class Shown:
  """A reproduction as it is told and drawn.

  Attributes:
    reproduction: what was declared.
    record: its measured.json.
    findings: one for each expected value.
    image: its figure, as the address of an image.
  """

  reproduction: Reproduction
  record: Record
  findings: tuple[Finding, ...]
  image: str

  @property
  def verdict(self) -> str:
    """The worst of the findings."""
    return overall(self.findings)

  @property
  def time(self) -> str:
    """What it took: 12 s, or 36 runs of 38 s."""
    seconds, runs = self.record['seconds'], self.record.get('runs')
    return f'{runs} runs of {seconds / runs:.0f} s' if runs else f'{seconds:.0f} s'


def draw(reproduction: Reproduction, record: Record, directory: Path) -> Shown:
  """Judges and draws a reproduction from its record alone.

  Args:
    reproduction: what was declared.
    record: its measured.json.
    directory: where <name>.png, .pdf, .svg and .json go.
  """
  figure = figure_style.styled(reproduction.draw)(record['measured'])
  figure_style.save(figure, directory, reproduction.name)
  provenance = {key: value for key, value in record.items() if key != 'measured'}
  write_json(directory / f'{reproduction.name}.json', {**provenance, 'drawn': drawn_numbers(figure)})
  return as_drawn(reproduction, record, directory)


def as_drawn(reproduction: Reproduction, record: Record, directory: Path) -> Shown:
  """Judges a reproduction by its record, with the figure that `draw` left; the arguments are those of `draw`."""
  return judge(reproduction, record, page.embed(directory / f'{reproduction.name}.svg'))


def judge(reproduction: Reproduction, record: Record, image: str = '') -> Shown:
  """Compares what was measured with what is expected.

  Raises:
    ConfigError: if the record lacks a value that is expected.
  """
  missing = [one.quantity for one in reproduction.expected if one.quantity not in record['measured']]
  if missing:
    raise ConfigError(f'{reproduction.name}: nothing gave {missing[0]!r}, which REPRODUCTION.expected names')
  return Shown(reproduction, record, tuple(judge_all(reproduction, record['measured'])), image)


def details(one: Shown) -> Table:
  """The expected values of a reproduction beside what was measured, a line each, for a terminal of 100 columns."""
  title = Text.assemble((one.reproduction.name, 'bold'), f': {one.reproduction.claim}')
  view = new_table(title)
  for column in ('', 'expected', 'measured', 'verdict'):
    view.add_column(column, overflow='fold')
  for finding in one.findings:
    verdict = Text(finding.verdict, style=COLOURS[finding.verdict])
    view.add_row(Text(finding.says), Text(finding.expected), Text(finding.measured), verdict)
  return view


def table(shown: Sequence[Shown]) -> Table:
  """A line for each reproduction."""
  view = new_table()
  for column in ('reproduction', 'claim', 'verdict', 'time'):
    view.add_column(column, justify='right' if column == 'time' else 'left')
  for one in shown:
    met = sum(finding.verdict == 'reproduced' for finding in one.findings)
    verdict = Text(f'{one.verdict}\n{met} of {len(one.findings)} values', style=COLOURS[one.verdict])
    view.add_row(one.reproduction.name, Text(one.reproduction.claim), verdict, one.time)
  return view


def write_page(shown: Sequence[Shown], missing: Sequence[str], path: Path) -> Path:
  """Writes the page: every reproduction with claim, expected, measured, verdict, figure and command; one file.

  Args:
    shown: in the order of the page.
    missing: a line for each that is not there, saying why.
    path: of the page.
  """
  counts: dict[str, Any] = {verdict: sum(one.verdict == verdict for one in shown) for verdict in COLOURS}
  return write_atomically(path, page.render('gallery.html.j2', shown=shown, counts=counts, missing=missing))
