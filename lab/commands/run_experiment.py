"""Runs an experiment: checks all runs, trains the unfinished ones, and writes and prints the report."""

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from lab.analysis import ngram_baselines
from lab.analysis.tuning_results import Tuning
from lab.core.experiment import Experiment
from lab.core.plan import check_directories
from lab.core.run import Run
from lab.launch import worker_pool
from lab.launch.launch_result import Launcher
from lab.report import report
from training.data.loading import Data, load_data
from training.data.splits import Split
from training.files import SaveFailed, clear_unfinished
from training.resume import check_start
from training.run_files.locks import REPORT_WITHIN, locked
from training.run_files.run_directory import check_data, is_finished


class ReportOptions(NamedTuple):
  """What a report shows of an experiment.

  Attributes:
    variants: the requested variants; empty: all that have runs.
    labels: labels by variant, for those that have one.
  """

  variants: tuple[str, ...] = ()
  labels: Mapping[str, str] = {}


class TrainingOutcome(NamedTuple):
  """The outcome of `train_runs`.

  Attributes:
    data: the data of the first run.
    unfinished: the runs that were not finished before.
    failed: the runs that failed.
    exit_code: the exit code, if some runs are neither finished nor failed; otherwise None.
  """

  data: Data
  unfinished: list[Run]
  failed: list[Run]
  exit_code: int | None


def run_experiment(
  experiment: Experiment,
  runs: Sequence[Run],
  launcher: Launcher,
  console: Console,
  command: str,
  extend: bool = False,
  tuning: Tuning | None = None,
  joins: bool = False,
  options: ReportOptions = ReportOptions(),  # noqa: B008
) -> int:
  """Trains the unfinished runs, and writes and prints the report.

  The report covers all finished runs; if nothing had to be trained, only the requested variants and the baseline.

  Args:
    experiment: the experiment with all its variants.
    runs: the requested runs.
    launcher: trains the runs; see lab/launch/launchers.py.
    console: where to print.
    command: reproduces the report, which shows it.
    extend: whether existing runs with fewer steps, but otherwise the same settings, train to the requested number.
    tuning: the tuning of the experiment, which the report shows; None if there is none.
    joins: whether several processes train the run together and this is not the first of them.
    options: what the report shows.

  Returns:
    The exit code: 0; 1 if a run failed; the launcher's exit code if runs are unfinished, and then no report is written.

  Raises:
    ConfigError: if a run is impossible; before anything is compiled or written.
  """
  data, unfinished, failed, exit_code = train_runs(runs, launcher, console, extend, joins)
  if exit_code is not None:
    return exit_code
  directory = runs[0].directory.parent.parent
  if len(failed) == len(runs):
    return 1
  existing = {run.parent.name for run in directory.glob('*/seed_*')} if unfinished else ()
  shown = _select_shown(experiment, options.variants, existing)
  try:
    with locked(directory / 'lock', REPORT_WITHIN):  # of two concurrent commands, the second reports all runs
      for folder in (directory, directory / 'figures'):
        clear_unfinished(folder)
      splits: tuple[Split, ...] = ('validation', 'test') if runs[0].tuned else ('validation',)
      for split in splits:
        ngram_baselines.write_if_outdated(directory, split, data, runs[0].config.run.final_evaluation_tokens)
      summary, paths = report.write(shown, directory, command, tuning, options.labels)
  except OSError as error:  # the disk is full or read-only
    print_report(report.read_summary(shown, directory, command, tuning, options.labels), [], console)
    console.print(
      f'report not written, only the table above: {SaveFailed(error.filename or directory, error)}', soft_wrap=True
    )
    return 1
  print_report(summary, paths, console)
  return 1 if failed else 0


def print_report(summary: Mapping[str, Any], paths: Sequence[Path], console: Console) -> None:
  """Prints the table of a report and the paths of its files."""
  console.print(report.verdict_table(summary, console.width))
  for path in paths:
    console.print(_relative_to_cwd(path), highlight=False, soft_wrap=True)


def _select_shown(experiment: Experiment, requested: Sequence[str], existing: Collection[str]) -> Experiment:
  """The experiment with only the baseline, the requested variants and the existing ones; all if none are requested."""
  selected = (experiment.baseline, *requested, *existing)
  variants = {name: own for name, own in experiment.variants.items() if not requested or name in selected}
  return dataclasses.replace(experiment, variants=variants)


def train_runs(
  runs: Sequence[Run], launcher: Launcher, console: Console, extend: bool = False, joins: bool = False
) -> TrainingOutcome:
  """Trains the unfinished runs; takes and raises the same as `run_experiment`."""
  check_directories(runs, extend, joins)
  data, unfinished = _load_data(runs), worker_pool.unfinished(runs)
  failed, exit_code = launcher(runs, unfinished, console)
  return TrainingOutcome(data, unfinished, failed, exit_code)


def _load_data(runs: Sequence[Run]) -> Data:
  """Loads the data of all runs, once for all seeds, and checks that they can start; returns the first run's data."""
  loaded: dict[Any, Data] = {}
  for run in runs:
    config = run.config
    key = dataclasses.replace(config.data, seed=0), config.run.batch_size, config.model.vocab_size
    if key not in loaded:
      loaded[key] = load_data(config)
    check_data(run.directory, loaded[key].checksum)
    if not is_finished(run.directory, config):
      check_start(run.directory, config, loaded[key].checksum)
  return next(iter(loaded.values()))


def _relative_to_cwd(path: Path) -> str:
  """The path relative to the current directory, if it is inside it."""
  with contextlib.suppress(ValueError):
    return str(path.absolute().relative_to(Path.cwd()))
  return str(path)
