"""An experiment from its runs to its report: check all, train what is unfinished, compare, draw, print."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from experiments import machine, report, signals, sweep
from experiments.display import Display
from experiments.experiment import Experiment
from experiments.plan import Run, check_directories
from experiments.processes import ALONE, Processes, check_coordinator
from experiments.runs import yardsticks_file
from experiments.tuning import Tuning
from training.data import Data, load_for
from training.files import clear_unfinished, write_json
from training.mesh import mesh_shape
from training.ngrams import yardsticks
from training.resume import check_start
from training.run_directory import CLAIM, check_text, extend_steps, is_finished, locked


class Trained(NamedTuple):
  """What `train_runs` did: the data it read, the runs that were not finished before, those that failed, its end."""

  data: Data
  todo: list[Run]
  failed: list[Run]
  stopped: bool


def conduct(
  experiment: Experiment,
  runs: Sequence[Run],
  workers: int,
  console: Console,
  command: str,
  extend: bool = False,
  tuning: Tuning | None = None,
  processes: Processes = ALONE,
) -> int:
  """Trains the runs that are not finished, and writes and prints the report.

  Args:
    experiment: as declared, with all its variants.
    runs: those asked for.
    workers: runs at a time; 0: one a core or GPU.
    console: where to print.
    command: makes it all again; the report shows it.
    extend: whether runs of fewer steps, but else the same, go on to as many as asked for.
    tuning: how the learning rates were, or might have been, chosen; the report shows it.
    processes: that train the one run together; the first writes the report.

  Returns:
    The exit code: 0; 1 if a run failed; 75 if it was stopped, and should be run again.

  Raises:
    ConfigError: before anything is compiled or written, if a run cannot be.
  """
  data, todo, failed, stopped = train_runs(runs, workers, console, extend, processes)
  if stopped:
    return signals.STOPPED
  if processes.index > 0:
    return 1 if failed else 0
  directory = runs[0].directory.parent.parent
  if len(failed) < len(runs):
    with locked(directory / 'lock', wait=True):  # of two commands that share the directory, the second sees all runs
      for folder in (directory, directory / 'figures'):
        clear_unfinished(folder)
      for split in ('validation', 'test') if runs[0].tuned else ('validation',):
        path = directory / yardsticks_file(split)
        if todo or not path.exists():
          write_json(path, yardsticks(data, split))
      summary, paths = report.write(experiment, directory, command, tuning)
    console.print(report.table(summary))
    for path in paths:
      console.print(_from_here(path), highlight=False, soft_wrap=True)
  return 1 if failed else 0


def train_runs(
  runs: Sequence[Run], workers: int, console: Console, extend: bool = False, processes: Processes = ALONE
) -> Trained:
  """Trains the runs that are not finished; the arguments and errors are those of `conduct`."""
  leads = processes.index == 0
  check_directories(runs, extend, joins=not leads)
  data = _load_data(runs)
  todo, stopped = sweep.unfinished(runs), False
  failed: list[Run] = []
  if todo:
    # A lone run has the whole machine; in an experiment a run has one core, so that its bits do not depend on the rest.
    lone = len(runs) == 1 and runs[0].experiment == 'custom'
    places = machine.worker_places(workers, lone or processes.count > 1, runs[0].config.mesh, processes)
    for run in todo:
      mesh_shape(run.config, places[0].devices * processes.count, processes.count)
    check_coordinator(processes)
    claims = _claimed(todo) if leads else contextlib.nullcontext()
    with claims, Display(console, len(runs), len(runs) - len(todo)) as display:
      failed, stopped = sweep.execute(todo, places, display, processes)
    if stopped:
      left = len(sweep.unfinished(runs))
      console.print(
        f'stopped: {len(runs) - left} of {len(runs)} runs are finished; the same command goes on from there'
      )
  return Trained(data, todo, failed, stopped)


@contextlib.contextmanager
def _claimed(runs: Sequence[Run]) -> Iterator[None]:
  """Keeps other commands off the runs, and gives those that are extended their new number of steps."""
  with contextlib.ExitStack() as claims:
    for run in runs:
      claims.enter_context(locked(run.directory / CLAIM))
    for run in runs:
      extend_steps(run.directory, run.config)
    yield


def _load_data(runs: Sequence[Run]) -> Data:
  """Loads what each run reads, once for all seeds, and returns the first run's; checks what each would go on from."""
  loaded: dict[Any, Data] = {}
  for run in runs:
    config = run.config
    key = dataclasses.replace(config.data, seed=0), config.run.batch_size, config.model.vocab_size
    if key not in loaded:
      loaded[key] = load_for(config)
    check_text(run.directory, loaded[key].checksum)
    if not is_finished(run.directory, config):
      check_start(run.directory, config, loaded[key].checksum)
  return next(iter(loaded.values()))


def _from_here(path: Path) -> str:
  """A path as a person would type it."""
  with contextlib.suppress(ValueError):
    return str(path.absolute().relative_to(Path.cwd()))
  return str(path)
