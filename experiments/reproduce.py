"""Redraws every figure, and says of each published claim whether BlockLab's own modules bear it out.

  python -m experiments.reproduce                                   everything that fits in 15 minutes on two cores
  python -m experiments.reproduce --only=worked_example,rank_collapse
  python -m experiments.reproduce --from_logs                       redraws from runs/ alone
  python -m experiments.reproduce --scale=full                      the sizes for a GPU
  python -m experiments.reproduce --check                           names what moved since it was last run here
  python -m experiments.reproduce --list                            names what there is, with its claim and its time

Writes runs/reproduce/<name>/measured.json and its figure, and runs/reproduce/report.html with all that are there. What
is left out without --only is named at the end, with the command that makes it; --check leaves out all that trains. The
exit code is 1 if a reproduction failed or, with --check, moved, and 2 if what was asked for is not there. A verdict is
not an error.
"""

import contextlib
import datetime
import itertools
import shlex
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import start_up

if __name__ == '__main__':
  start_up.prepare('experiments.reproduce')  # before the imports below
  start_up.check_jax('experiments.reproduce')

from absl import flags
from rich import box
from rich.console import Console
from rich.table import Table

from experiments import gallery, record, registry, trained
from experiments.command_line import refuse, run
from experiments.reproduction import Reproduction
from training.config import ConfigError
from training.files import Damaged, SaveFailed, read_json, write_sealed
from training.paths import check_output, given_path

NAME = 'experiments.reproduce'
BUDGET = 15 * 60  # seconds on two cores

FLAGS = flags.FlagValues()  # its own: train.py has some of the same names
LIST = flags.DEFINE_bool('list', False, 'List the reproductions, and run nothing.', flag_values=FLAGS)
ONLY = flags.DEFINE_list(
  'only',
  [],
  'Reproduce these alone. Default: the quickest, as many as fit in 15 minutes on two cores; the end of the '
  'output names those left out, and how to run each.',
  flag_values=FLAGS,
)
FROM_LOGS = flags.DEFINE_bool(
  'from_logs', False, 'Measure and train nothing: redraw from what is in the workdir.', flag_values=FLAGS
)
SCALE = flags.DEFINE_enum(
  'scale', 'small', ['small', 'full'], 'small: for two cores; full: for a GPU, and all of it.', flag_values=FLAGS
)
CHECK = flags.DEFINE_bool(
  'check',
  False,
  'Compare with what experiments/expected keeps, and exit with 1 if something moved. Without --only, '
  'those that need no training.',
  flag_values=FLAGS,
)
UPDATE_EXPECTED = flags.DEFINE_bool(
  'update_expected', False, 'Keep what was measured as what to expect from now on.', flag_values=FLAGS
)
WORKDIR = flags.DEFINE_string('workdir', 'runs', 'Where the results go: <workdir>/reproduce.', flag_values=FLAGS)


def main(console: Console) -> int:
  """Reproduces what the flags ask for, and returns the exit code."""
  if SCALE.value == 'full' and (CHECK.value or UPDATE_EXPECTED.value):
    raise ConfigError('experiments/expected holds what --scale=small gives: leave --scale=full out')
  every, broken = find_all()
  if LIST.value:
    list_all(every, broken, console)
    return 0
  folder = given_path(WORKDIR.value, '--workdir') / 'reproduce'
  chosen = choose(ONLY.value, every, folder)
  check_output(folder, '--workdir')
  told, shown, problems, code = [], [], [], 0
  for reproduction in chosen:
    directory = folder / reproduction.name
    try:
      made = obtain(reproduction, folder, console)
      told.append(gallery.judge(reproduction, made))
      console.print(gallery.details(told[-1]))  # before it is written: a full disk does not take what was measured
      if not FROM_LOGS.value:
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
  problems += [] if ONLY.value else broken
  console.print(gallery.table(told))
  # Where runs were trained or read just now, the table of the experiment has said so.
  by_other_code = [record.code_note(one.record) for one in told if FROM_LOGS.value or one.reproduction.measure]
  for line in [*problems, *filter(None, by_other_code), *left_out(chosen, every)]:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
  before, outdated = kept(chosen, every, folder)
  on_page = sorted(shown + before, key=lambda one: every.index(one.reproduction))
  by_other_code = [record.code_note(one.record) for one in on_page]
  page = gallery.write_page(on_page, [*problems, *outdated, *filter(None, by_other_code)], folder / 'report.html')
  console.print(str(page), highlight=False, soft_wrap=True)
  return max(code, compare(shown, console))


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
  table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
  for column in ('reproduction', 'time', 'claim'):
    table.add_column(column, justify='right' if column == 'time' else 'left', no_wrap=column != 'claim')
  for one in every:
    time_taken = f'{one.seconds:.0f} s' if one.seconds < 90 else f'{one.seconds / 60:.0f} min'
    table.add_row(one.name, time_taken, one.claim)
  console.print(table)
  for line in broken:
    console.print(line, soft_wrap=True)


def choose(only: Sequence[str], every: Sequence[Reproduction], folder: Path) -> list[Reproduction]:
  """Those named; else the quickest that together fit the budget.

  With --scale=full all; with --check those that train nothing and have something kept; with --from_logs also all that
  have a record.

  Args:
    only: the names given.
    every: what there is, the quickest first.
    folder: of the records.

  Raises:
    ConfigError: for an unknown name, with the nearest one, or if there is nothing to redraw.
  """
  if FROM_LOGS.value and not any(folder.glob('*/measured.json')):
    raise ConfigError(f'{folder} holds nothing to redraw: run python -m {NAME} --workdir={folder.parent} first')
  if only:
    return [registry.find_reproduction(name) for name in dict.fromkeys(only)]
  if SCALE.value == 'full':
    return list(every)
  if CHECK.value:
    return [one for one in every if one.measure is not None and record.expected_path(one.name).exists()]
  ends = itertools.accumulate(one.seconds for one in every)
  return [
    one
    for one, end in zip(every, ends, strict=True)
    if end <= BUDGET or (FROM_LOGS.value and (folder / one.name / 'measured.json').exists())
  ]


def left_out(chosen: Sequence[Reproduction], every: Sequence[Reproduction]) -> list[str]:
  """A line for each reproduction that takes too long to be run without being named."""
  rest = [] if ONLY.value else [one for one in every if one not in chosen]
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


def obtain(reproduction: Reproduction, folder: Path, console: Console) -> dict[str, Any]:
  """The record of a reproduction: measured now, and not written yet, or with --from_logs read.

  Raises:
    ConfigError: where a file or a run that is needed is not there, saying what to run.
  """
  path = folder / reproduction.name / 'measured.json'
  if FROM_LOGS.value:
    scale = SCALE.value
    with contextlib.suppress(Damaged):  # it is written anew from the runs; or else it is read below, and refused
      scale = (read_json(path) or {}).get('scale', scale)
    if reproduction.measure is None and trained.runs_directory(reproduction, scale, folder.parent).exists():
      write_sealed(path, trained.read_runs(reproduction, scale, folder.parent))
    return record.read_record(path, reproduction)
  console.print(f'{reproduction.name}: about {reproduction.seconds:.0f} s')
  started = time.perf_counter()
  if reproduction.measure is None:
    return trained.reproduce(reproduction, SCALE.value, folder.parent, console)
  measured = reproduction.measure(**reproduction.at_scale(SCALE.value))
  return record.make_record(reproduction, SCALE.value, measured, time.perf_counter() - started)


def compare(shown: Sequence[gallery.Shown], console: Console) -> int:
  """With --check, names what moved and returns 1 if something did; with --update_expected, keeps what was measured."""
  code = 0
  for one in shown:
    if UPDATE_EXPECTED.value:
      record.write_expected(one.reproduction, one.findings, datetime.date.today().isoformat())
    elif CHECK.value:
      try:
        lines = record.moved(one.reproduction, one.findings)
      except ConfigError as error:
        code = refuse(NAME, error)
        continue
      for line in lines:
        console.print(f'{one.reproduction.name} moved: {line}', markup=False, highlight=False, soft_wrap=True)
        code = max(code, 1)
  if CHECK.value and not code:
    console.print(f'nothing moved ({shlex.join(one.reproduction.name for one in shown)})', highlight=False)
  return code


if __name__ == '__main__':
  run(NAME, main, FLAGS)
