"""Redraws every figure, and says of each published claim whether BlockLab's own modules bear it out.

  python -m experiments.reproduce                                   everything that fits in 15 minutes on two cores
  python -m experiments.reproduce --only=worked_example,rank_collapse
  python -m experiments.reproduce --from_logs                       redraws from runs/ alone
  python -m experiments.reproduce --scale=full                      the sizes for a GPU
  python -m experiments.reproduce --check                           names what moved since it was last run here

Writes runs/reproduce/<name>/measured.json and its figure, and runs/reproduce/report.html. The exit code is 1 if a
reproduction failed or, with --check, moved, and 2 if what was asked for is not there. A verdict is not an error.
"""

import datetime
import itertools
import shlex
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from rich.console import Console

from experiments import gallery, record, registry, trained
from experiments.command_line import refuse, run
from experiments.reproduction import Reproduction
from training.config import ConfigError
from training.files import write_json

NAME = 'experiments.reproduce'
BUDGET = 15 * 60  # seconds on two cores

FLAGS = flags.FlagValues()  # its own: train.py has some of the same names
ONLY = flags.DEFINE_list(
  'only', [], 'Reproduce these alone. Default: all that fit in 15 minutes on two cores.', flag_values=FLAGS
)
FROM_LOGS = flags.DEFINE_bool(
  'from_logs', False, 'Measure and train nothing: redraw from what is in the workdir.', flag_values=FLAGS
)
SCALE = flags.DEFINE_enum(
  'scale', 'small', ['small', 'full'], 'small: for two cores; full: for a GPU, and all of it.', flag_values=FLAGS
)
CHECK = flags.DEFINE_bool(
  'check', False, 'Compare with what experiments/expected keeps, and exit with 1 if something moved.', flag_values=FLAGS
)
UPDATE_EXPECTED = flags.DEFINE_bool(
  'update_expected', False, 'Keep what was measured as what to expect from now on.', flag_values=FLAGS
)
WORKDIR = flags.DEFINE_string('workdir', 'runs', 'Where the results go: <workdir>/reproduce.', flag_values=FLAGS)


def main(console: Console) -> int:
  """Reproduces what the flags ask for, and returns the exit code."""
  if SCALE.value == 'full' and (CHECK.value or UPDATE_EXPECTED.value):
    raise ConfigError('experiments/expected holds what --scale=small gives: leave --scale=full out')
  folder = Path(WORKDIR.value).expanduser() / 'reproduce'
  chosen = choose(ONLY.value, folder)
  shown, problems, code = [], [], 0
  for reproduction in chosen:
    try:
      made = obtain(reproduction, folder, console)
      shown.append(gallery.draw(reproduction, made, folder / reproduction.name))
      console.print(gallery.details(shown[-1]))
    except ConfigError as error:
      code = refuse(NAME, error)
      problems.append(f'{reproduction.name}: {error}')
    except Exception as error:  # whatever it is, it is this reproduction's end alone
      traceback.print_exc()
      code = max(code, 1)
      problems.append(f'{reproduction.name} FAILED: {type(error).__name__}: {error}')
  console.print(gallery.table(shown))
  for line in problems + left_out(chosen):
    console.print(line, markup=False, highlight=False, soft_wrap=True)
  console.print(str(gallery.write_page(shown, problems, folder / 'report.html')), highlight=False, soft_wrap=True)
  return max(code, compare(shown, console))


def choose(only: Sequence[str], folder: Path) -> list[Reproduction]:
  """Those named; else the quickest that together fit the budget, with --scale=full all, with --check what is kept.

  Raises:
    ConfigError: for an unknown name, with the nearest one, or if there is nothing to redraw.
  """
  if FROM_LOGS.value and not any(folder.glob('*/measured.json')):
    raise ConfigError(f'{folder} holds nothing to redraw: run python -m {NAME} --workdir={folder.parent} first')
  if only:
    return [registry.find_reproduction(name) for name in dict.fromkeys(only)]
  every = [registry.find_reproduction(name) for name in registry.reproduction_names()]
  every.sort(key=lambda reproduction: reproduction.seconds)
  if SCALE.value == 'full':
    return every
  if CHECK.value:
    return [reproduction for reproduction in every if record.expected_path(reproduction.name).exists()]
  ends = itertools.accumulate(reproduction.seconds for reproduction in every)
  return [
    reproduction
    for reproduction, end in zip(every, ends, strict=True)
    if end <= BUDGET or (FROM_LOGS.value and (folder / reproduction.name / 'measured.json').exists())
  ]


def left_out(chosen: Sequence[Reproduction]) -> list[str]:
  """A line for each reproduction that takes too long to be run without being named."""
  if ONLY.value:
    return []
  names = set(registry.reproduction_names()) - {reproduction.name for reproduction in chosen}
  rest = [registry.find_reproduction(name) for name in sorted(names)]
  return [
    f'left out: {one.name}, about {one.seconds / 60:.0f} min: {record.command(one.name, "small")}' for one in rest
  ]


def obtain(reproduction: Reproduction, folder: Path, console: Console) -> dict[str, Any]:
  """The record of a reproduction: measured now, or with --from_logs read.

  Raises:
    ConfigError: where a file or a run that is needed is not there, saying what to run.
  """
  path = folder / reproduction.name / 'measured.json'
  if FROM_LOGS.value:
    return record.read_record(path, reproduction)
  console.print(f'{reproduction.name}: about {reproduction.seconds:.0f} s', highlight=False)
  started = time.perf_counter()
  if reproduction.measure is None:
    made = trained.reproduce(reproduction, SCALE.value, folder.parent, console)
  else:
    measured = reproduction.measure(**reproduction.at_scale(SCALE.value))
    made = record.make_record(reproduction, SCALE.value, measured, time.perf_counter() - started)
  write_json(path, made)
  return record.read_record(path, reproduction)


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
