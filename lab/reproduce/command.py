"""The command reproduce.py, from its flags to verdicts, figures and the report of all reproductions."""

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

from lab.cli.command_line import report_error
from lab.cli.tables import new_table
from lab.core import registry
from lab.core.reproduction import Reproduction
from lab.reproduce import expected_values, record, reproduction_report, training_runs
from lab.reproduce.reproduction_report import ReproductionResult
from training.config import ConfigError
from training.files import Damaged, SaveFailed, read_json, write_sealed
from training.paths import check_output, parse_path

NAME = 'reproduce.py'
BUDGET = 15 * 60  # seconds on two cores, for the default selection


@dataclasses.dataclass(frozen=True)
class ReproduceOptions:
  """The flags of reproduce.py; its --help describes each."""

  list: bool = False
  only: tuple[str, ...] = ()
  from_logs: bool = False
  scale: str = 'small'
  check: bool = False
  update_expected: bool = False
  workdir: str = 'runs'


def reproduce(options: ReproduceOptions, console: Console) -> int:
  """Runs the selected reproductions.

  Returns:
    The exit code: 1 if a reproduction failed or, with --check, changed; 2 if one could not be started; 0 otherwise.

  Raises:
    ConfigError: if a reproduction is unknown, or flags contradict each other.
  """
  if options.scale == 'full' and (options.check or options.update_expected):
    raise ConfigError('experiments/expected holds values for --scale=small: omit --scale=full')
  all_reproductions, unusable = find_reproductions()
  if options.list:
    print_list(all_reproductions, unusable, console)
    return 0
  folder = parse_path(options.workdir, '--workdir') / 'reproduce'
  selected = select(options, all_reproductions, folder)
  check_output(folder, '--workdir')
  measured, drawn, problems, code = list[ReproductionResult](), list[ReproductionResult](), list[str](), 0
  for reproduction in selected:
    directory = folder / reproduction.name
    try:
      content = obtain_record(options, reproduction, folder, console)
      measured.append(reproduction_report.evaluate(reproduction, content))
      console.print(reproduction_report.detail_table(measured[-1]))  # before writing: the disk may be full
      if not options.from_logs:
        write_sealed(directory / 'measured.json', content)
      drawn.append(reproduction_report.draw(reproduction, content, directory))
    except ConfigError as error:
      code = report_error(NAME, error)
      problems.append(f'{reproduction.name}: {error}')
    except (OSError, SaveFailed) as error:
      code = max(code, 1)
      failed = SaveFailed(error.filename or directory, error) if isinstance(error, OSError) else error
      problems.append(f'{reproduction.name} FAILED: {failed}')
    except Exception as error:  # the other reproductions still run after any error in an experiment file
      traceback.print_exc()
      code = max(code, 1)
      problems.append(f'{reproduction.name} FAILED: {type(error).__name__}: {error}')
  problems += [] if options.only else unusable
  console.print(reproduction_report.summary_table(measured))
  # After training, the experiment's own table has printed this note already.
  notes = [record.code_note(one.record) for one in measured if options.from_logs or one.reproduction.measure]
  for line in [*problems, *filter(None, notes), *describe_left_out(options, selected, all_reproductions)]:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
  previous, outdated = load_previous(selected, all_reproductions, folder)
  shown = sorted(drawn + previous, key=lambda one: all_reproductions.index(one.reproduction))
  notes = [record.code_note(one.record) for one in shown]
  path = reproduction_report.write_report(shown, [*problems, *outdated, *filter(None, notes)], folder / 'report.html')
  console.print(str(path), highlight=False, soft_wrap=True)
  return max(code, check_or_update_expected(options, drawn, console))


def find_reproductions() -> tuple[list[Reproduction], list[str]]:
  """All reproductions, the fastest first, and a message for each file that cannot be used."""
  found, unusable = [], registry.unreadable_files()
  for name in registry.reproduction_names():
    try:
      found.append(registry.find_reproduction(name))
    except ConfigError as error:
      unusable.append(str(error))
  return sorted(found, key=lambda one: one.seconds), [f'cannot be used: {line}' for line in unusable]


def print_list(all_reproductions: Sequence[Reproduction], unusable: Sequence[str], console: Console) -> None:
  """Prints every reproduction with its time on two cores and its claim, then the files that cannot be used."""
  table = new_table()
  for column in ('reproduction', 'time', 'claim'):
    table.add_column(column, justify='right' if column == 'time' else 'left', no_wrap=column != 'claim')
  for one in all_reproductions:
    duration = f'{one.seconds:.0f} s' if one.seconds < 90 else f'{one.seconds / 60:.0f} min'
    table.add_row(one.name, duration, one.claim)
  console.print(table)
  for line in unusable:
    console.print(line, soft_wrap=True)


def select(options: ReproduceOptions, all_reproductions: Sequence[Reproduction], folder: Path) -> list[Reproduction]:
  """The reproductions named by --only; by default the fastest ones that together fit the budget.

  --scale=full selects all, --check those that need no training and have committed values, and --from_logs additionally
  all that have a record.

  Args:
    options: the flags.
    all_reproductions: all reproductions, the fastest first.
    folder: <workdir>/reproduce.

  Raises:
    ConfigError: for an unknown name (the message suggests the most similar one), or if there is no record to redraw.
  """
  if options.from_logs and not any(folder.glob('*/measured.json')):
    raise ConfigError(f'{folder} has no results to redraw: run python {NAME} --workdir={folder.parent} first')
  if options.only:
    return [registry.find_reproduction(name) for name in dict.fromkeys(options.only)]
  if options.scale == 'full':
    return list(all_reproductions)
  if options.check:
    return [
      one for one in all_reproductions if one.measure is not None and expected_values.expected_path(one.name).exists()
    ]
  end_times = itertools.accumulate(one.seconds for one in all_reproductions)
  return [
    one
    for one, end_time in zip(all_reproductions, end_times, strict=True)
    if end_time <= BUDGET or (options.from_logs and (folder / one.name / 'measured.json').exists())
  ]


def describe_left_out(
  options: ReproduceOptions, selected: Sequence[Reproduction], all_reproductions: Sequence[Reproduction]
) -> list[str]:
  """A line with time and command for each reproduction that the default selection leaves out."""
  left_out = [] if options.only else [one for one in all_reproductions if one not in selected]
  return [
    f'left out: {one.name}, about {one.seconds / 60:.0f} min: {record.command(one.name, "small")}' for one in left_out
  ]


def load_previous(
  selected: Sequence[Reproduction], all_reproductions: Sequence[Reproduction], folder: Path
) -> tuple[list[ReproductionResult], list[str]]:
  """Earlier results of reproductions that are not selected now, and a message for each record that cannot be used."""
  results, problems = [], []
  for one in all_reproductions:
    directory = folder / one.name
    if one not in selected and (directory / f'{one.name}.svg').exists():
      try:
        content = record.read_record(directory / 'measured.json', one)
        results.append(reproduction_report.load_drawn(one, content, directory))
      except ConfigError as error:
        problems.append(f'{one.name}: {error}')
  return results, problems


def obtain_record(
  options: ReproduceOptions, reproduction: Reproduction, folder: Path, console: Console
) -> dict[str, Any]:
  """The record of a reproduction: measured now (and not written yet) or, with --from_logs, read from its file.

  Raises:
    ConfigError: if a record or run is missing; the message contains the command to run.
  """
  path = folder / reproduction.name / 'measured.json'
  if options.from_logs:
    scale = options.scale
    with contextlib.suppress(Damaged):  # replaced from the runs, or rejected by read_record below
      scale = (read_json(path) or {}).get('scale', scale)
    if reproduction.measure is None and training_runs.runs_directory(reproduction, scale, folder.parent).exists():
      write_sealed(path, training_runs.measure_runs(reproduction, scale, folder.parent))
    return record.read_record(path, reproduction)
  console.print(f'{reproduction.name}: about {reproduction.seconds:.0f} s')
  started = time.perf_counter()
  if reproduction.measure is None:
    return training_runs.train_and_measure(reproduction, options.scale, folder.parent, console)
  measured = reproduction.measure(**reproduction.at_scale(options.scale))
  return record.make_record(reproduction, options.scale, measured, time.perf_counter() - started)


def check_or_update_expected(options: ReproduceOptions, results: Sequence[ReproductionResult], console: Console) -> int:
  """With --check, prints the differences from the committed values; with --update_expected, replaces these.

  Returns:
    The exit code: 1 if something differs, 2 if there are no committed values.
  """
  code = 0
  for result in results:
    name = result.reproduction.name
    if options.update_expected:
      today = datetime.date.today().isoformat()
      expected_values.write_expected(result.reproduction, result.comparisons, today)
    elif options.check:
      try:
        lines = expected_values.changes(result.reproduction, result.comparisons)
      except ConfigError as error:
        code = report_error(NAME, error)
        continue
      for line in lines:
        console.print(f'{name} changed: {line}', markup=False, highlight=False, soft_wrap=True)
        code = max(code, 1)
  if options.check and not code:
    console.print(f'nothing changed ({shlex.join(one.reproduction.name for one in results)})', highlight=False)
  return code
