"""From the flags of reproduce.py to verdicts, figures and the report of all reproductions."""

import contextlib
import dataclasses
import datetime
import itertools
import shlex
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lab.cli.command_line import refuse
from lab.cli.tables import new_table
from lab.core import registry
from lab.core.reproduction import Reproduction
from lab.reproduce import from_runs, gallery, record
from training.config import ConfigError
from training.files import Damaged, SaveFailed, read_json, write_sealed
from training.paths import check_output, given_path

NAME = 'reproduce.py'
BUDGET = 15 * 60  # seconds on two cores


@dataclasses.dataclass(frozen=True)
class Request:
  """The flags of reproduce.py; see its --help for what each means."""

  list: bool = False
  only: tuple[str, ...] = ()
  from_logs: bool = False
  scale: str = 'small'
  check: bool = False
  update_expected: bool = False
  workdir: str = 'runs'


def reproduce(asked: Request, console: Console) -> int:
  """Reproduces what is asked for, and returns the exit code: 1 if one failed or, with --check, moved.

  Raises:
    ConfigError: if what is asked for is not there, or flags contradict one another.
  """
  if asked.scale == 'full' and (asked.check or asked.update_expected):
    raise ConfigError('experiments/expected holds what --scale=small gives: leave --scale=full out')
  every, broken = find_all()
  if asked.list:
    list_all(every, broken, console)
    return 0
  folder = given_path(asked.workdir, '--workdir') / 'reproduce'
  chosen = choose(asked, every, folder)
  check_output(folder, '--workdir')
  told, shown, problems, code = [], [], [], 0
  for reproduction in chosen:
    directory = folder / reproduction.name
    try:
      made = obtain(asked, reproduction, folder, console)
      told.append(gallery.judge(reproduction, made))
      console.print(gallery.details(told[-1]))  # before it is written: a full disk does not take what was measured
      if not asked.from_logs:
        write_sealed(directory / 'measured.json', made)
      shown.append(gallery.draw(reproduction, made, directory))
    except ConfigError as error:
      code = refuse(NAME, error)
      problems.append(f'{reproduction.name}: {error}')
    except (OSError, SaveFailed) as error:
      code = max(code, 1)
      failed = SaveFailed(error.filename or directory, error) if isinstance(error, OSError) else error
      problems.append(f'{reproduction.name} FAILED: {failed}')
    except Exception as error:  # whatever it is, it is this reproduction's end alone
      traceback.print_exc()
      code = max(code, 1)
      problems.append(f'{reproduction.name} FAILED: {type(error).__name__}: {error}')
  problems += [] if asked.only else broken
  console.print(gallery.table(told))
  # Where runs were trained or read just now, the table of the experiment has said so.
  by_other_code = [record.code_note(one.record) for one in told if asked.from_logs or one.reproduction.measure]
  for line in [*problems, *filter(None, by_other_code), *left_out(asked, chosen, every)]:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
  before, outdated = kept(chosen, every, folder)
  on_page = sorted(shown + before, key=lambda one: every.index(one.reproduction))
  by_other_code = [record.code_note(one.record) for one in on_page]
  page = gallery.write_page(on_page, [*problems, *outdated, *filter(None, by_other_code)], folder / 'report.html')
  console.print(str(page), highlight=False, soft_wrap=True)
  return max(code, compare(asked, shown, console))


def find_all() -> tuple[list[Reproduction], list[str]]:
  """Every reproduction, the quickest first, and a line for each file that cannot be used."""
  found, broken = [], list(registry.unreadable_files().values())
  for name in registry.reproduction_names():
    try:
      found.append(registry.find_reproduction(name))
    except ConfigError as error:
      broken.append(str(error))
  return sorted(found, key=lambda one: one.seconds), [f'cannot be used: {line}' for line in broken]


def list_all(every: Sequence[Reproduction], broken: Sequence[str], console: Console) -> None:
  """Prints what there is, with the time it takes on two cores, and what cannot be used."""
  table = new_table()
  for column in ('reproduction', 'time', 'claim'):
    table.add_column(column, justify='right' if column == 'time' else 'left', no_wrap=column != 'claim')
  for one in every:
    time_taken = f'{one.seconds:.0f} s' if one.seconds < 90 else f'{one.seconds / 60:.0f} min'
    table.add_row(one.name, time_taken, one.claim)
  console.print(table)
  for line in broken:
    console.print(line, soft_wrap=True)


def choose(asked: Request, every: Sequence[Reproduction], folder: Path) -> list[Reproduction]:
  """Those named; else the quickest that together fit the budget.

  With --scale=full all; with --check those that train nothing and have something kept; with --from_logs also all that
  have a record.

  Args:
    asked: `only` names some.
    every: what there is, the quickest first.
    folder: of the records.

  Raises:
    ConfigError: for an unknown name, with the nearest one, or if there is nothing to redraw.
  """
  if asked.from_logs and not any(folder.glob('*/measured.json')):
    raise ConfigError(f'{folder} holds nothing to redraw: run python {NAME} --workdir={folder.parent} first')
  if asked.only:
    return [registry.find_reproduction(name) for name in dict.fromkeys(asked.only)]
  if asked.scale == 'full':
    return list(every)
  if asked.check:
    return [one for one in every if one.measure is not None and record.expected_path(one.name).exists()]
  ends = itertools.accumulate(one.seconds for one in every)
  return [
    one
    for one, end in zip(every, ends, strict=True)
    if end <= BUDGET or (asked.from_logs and (folder / one.name / 'measured.json').exists())
  ]


def left_out(asked: Request, chosen: Sequence[Reproduction], every: Sequence[Reproduction]) -> list[str]:
  """A line for each reproduction that takes too long to be run without being named."""
  rest = [] if asked.only else [one for one in every if one not in chosen]
  return [
    f'left out: {one.name}, about {one.seconds / 60:.0f} min: {record.command(one.name, "small")}' for one in rest
  ]


def kept(
  chosen: Sequence[Reproduction], every: Sequence[Reproduction], folder: Path
) -> tuple[list[gallery.Shown], list[str]]:
  """The others that were reproduced before, as they were then, and a line for each whose record is of no use now."""
  shown, problems = [], []
  for one in every:
    directory = folder / one.name
    if one not in chosen and (directory / f'{one.name}.svg').exists():
      try:
        shown.append(gallery.as_drawn(one, record.read_record(directory / 'measured.json', one), directory))
      except ConfigError as error:
        problems.append(f'{one.name}: {error}')
  return shown, problems


def obtain(asked: Request, reproduction: Reproduction, folder: Path, console: Console) -> dict[str, Any]:
  """The record of a reproduction: measured now, and not written yet, or with --from_logs read.

  Raises:
    ConfigError: where a file or a run that is needed is not there, saying what to run.
  """
  path = folder / reproduction.name / 'measured.json'
  if asked.from_logs:
    scale = asked.scale
    with contextlib.suppress(Damaged):  # it is written anew from the runs; or else it is read below, and refused
      scale = (read_json(path) or {}).get('scale', scale)
    if reproduction.measure is None and from_runs.runs_directory(reproduction, scale, folder.parent).exists():
      write_sealed(path, from_runs.read_runs(reproduction, scale, folder.parent))
    return record.read_record(path, reproduction)
  console.print(f'{reproduction.name}: about {reproduction.seconds:.0f} s')
  started = time.perf_counter()
  if reproduction.measure is None:
    return from_runs.reproduce(reproduction, asked.scale, folder.parent, console)
  measured = reproduction.measure(**reproduction.at_scale(asked.scale))
  return record.make_record(reproduction, asked.scale, measured, time.perf_counter() - started)


def compare(asked: Request, shown: Sequence[gallery.Shown], console: Console) -> int:
  """With --check, names what moved and returns 1 if something did; with --update_expected, keeps what was measured."""
  code = 0
  for one in shown:
    if asked.update_expected:
      record.write_expected(one.reproduction, one.findings, datetime.date.today().isoformat())
    elif asked.check:
      try:
        lines = record.moved(one.reproduction, one.findings)
      except ConfigError as error:
        code = refuse(NAME, error)
        continue
      for line in lines:
        console.print(f'{one.reproduction.name} moved: {line}', markup=False, highlight=False, soft_wrap=True)
        code = max(code, 1)
  if asked.check and not code:
    console.print(f'nothing moved ({shlex.join(one.reproduction.name for one in shown)})', highlight=False)
  return code
