"""An experiment from its runs to its report: check all, train what is unfinished, compare, draw, print."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments import machine, report, sweep
from experiments.display import Display
from experiments.experiment import Experiment
from experiments.plan import Run, check_directories
from training.data import Data, load_for
from training.files import write_json
from training.ngrams import yardsticks


def conduct(experiment: Experiment, runs: Sequence[Run], workers: int, console: Console, command: str) -> int:
  """Trains the runs that are not finished, and writes and prints the report.

  Args:
    experiment: as declared, with all its variants.
    runs: those asked for.
    workers: runs at a time; 0: one a core or GPU.
    console: where to print.
    command: makes it all again; the report shows it.

  Returns:
    The exit code: 1 if a run failed.

  Raises:
    ConfigError: before anything is compiled or written, if a run cannot be.
  """
  check_directories(runs)
  data = _check_data(runs)
  directory = runs[0].directory.parent.parent
  todo = sweep.unfinished(runs)
  failed: list[Run] = []
  if todo:
    # A lone run has the whole machine; in an experiment a run has one core, so that its bits do not depend on the rest.
    places = machine.worker_places(workers, whole_machine=len(runs) == 1 and experiment.name == 'custom')
    with Display(console, len(runs), len(runs) - len(todo)) as display:
      failed = sweep.execute(todo, places, display)
  write_json(directory / 'yardsticks.json', yardsticks(data))
  if len(failed) < len(runs):
    paths = report.write(experiment, directory, command)
    console.print(report.table(report.summarise(experiment, directory)))
    for path in paths:
      console.print(_from_here(path), highlight=False, soft_wrap=True)
  return 1 if failed else 0


def _check_data(runs: Sequence[Run]) -> Data:
  """Loads what each run reads, once for all seeds, and returns the first run's."""
  distinct = {
    (dataclasses.replace(run.config.data, seed=0), run.config.run.batch_size, run.config.model.vocab_size): run
    for run in reversed(runs)
  }
  return [load_for(run.config) for run in distinct.values()][-1]


def _from_here(path: Path) -> str:
  """A path as a person would type it."""
  with contextlib.suppress(ValueError):
    return str(path.absolute().relative_to(Path.cwd()))
  return str(path)
