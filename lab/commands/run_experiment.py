"""An experiment from its runs to its report: check all, train what is unfinished, compare, draw, print."""

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
    variants: those asked for; empty: all that have runs.
    labels: of variants that are shown under another name.
  """

  variants: tuple[str, ...] = ()
  labels: Mapping[str, str] = {}


class TrainingOutcome(NamedTuple):
  """What `train_runs` did.

  Attributes:
    data: of the first run.
    todo: the runs that were not finished before.
    failed: those of them that failed.
    code: to exit with, if some are neither finished nor failed; else None.
  """

  data: Data
  todo: list[Run]
  failed: list[Run]
  code: int | None


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
  """Trains the runs that are not finished, and writes and prints the report.

  The report is of all runs that are there. Where all that were asked for are finished, and nothing is left but to draw,
  it is of the variants asked for, and of the baseline.

  Args:
    experiment: as declared, with all its variants.
    runs: those asked for.
    launcher: has the runs trained; see lab/launch/launchers.py.
    console: where to print.
    command: makes it all again; the report shows it.
    extend: whether runs of fewer steps, but else the same, go on to as many as asked for.
    tuning: how the learning rates were, or might have been, chosen; the report shows it.
    joins: whether another process leads: of those that train one run together.
    options: what the report shows.

  Returns:
    The exit code: 0; 1 if a run failed; the launcher's own if runs are left, and nothing is written then.

  Raises:
    ConfigError: before anything is compiled or written, if a run cannot be.
  """
  data, todo, failed, code = train_runs(runs, launcher, console, extend, joins)
  if code is not None:
    return code
  directory = runs[0].directory.parent.parent
  if len(failed) == len(runs):
    return 1
  shown = _shown(experiment, options.variants, {run.parent.name for run in directory.glob('*/seed_*')} if todo else ())
  try:
    with locked(directory / 'lock', REPORT_WITHIN):  # the second of two commands sees all runs
      for folder in (directory, directory / 'figures'):
        clear_unfinished(folder)
      splits: tuple[Split, ...] = ('validation', 'test') if runs[0].tuned else ('validation',)
      for split in splits:
        ngram_baselines.write_if_outdated(directory, split, data, runs[0].config.run.final_evaluation_tokens)
      summary, paths = report.write(shown, directory, command, tuning, options.labels)
  except OSError as error:  # on a full disk, or a read-only one
    print_report(report.read_summary(shown, directory, command, tuning, options.labels), [], console)
    console.print(f'only the table: {SaveFailed(error.filename or directory, error)}', soft_wrap=True)
    return 1
  print_report(summary, paths, console)
  return 1 if failed else 0


def print_report(summary: Mapping[str, Any], paths: Sequence[Path], console: Console) -> None:
  """Prints the table of a report, and where its files are."""
  console.print(report.summary_table(summary, console.width))
  for path in paths:
    console.print(_from_here(path), highlight=False, soft_wrap=True)


def _shown(experiment: Experiment, asked: Sequence[str], there: Collection[str]) -> Experiment:
  """The experiment with its baseline, the variants that were asked for, and those that are there, alone."""
  kept = (experiment.baseline, *asked, *there)
  variants = {name: own for name, own in experiment.variants.items() if not asked or name in kept}
  return dataclasses.replace(experiment, variants=variants)


def train_runs(
  runs: Sequence[Run], launcher: Launcher, console: Console, extend: bool = False, joins: bool = False
) -> TrainingOutcome:
  """Trains the runs that are not finished; the arguments and errors are those of `run_experiment`."""
  check_directories(runs, extend, joins)
  data, todo = _load_data(runs), worker_pool.unfinished(runs)
  failed, code = launcher(runs, todo, console)
  return TrainingOutcome(data, todo, failed, code)


def _load_data(runs: Sequence[Run]) -> Data:
  """Loads what each run reads, once for all seeds, and returns the first run's; checks what each would go on from."""
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


def _from_here(path: Path) -> str:
  """A path as a person would type it."""
  with contextlib.suppress(ValueError):
    return str(path.absolute().relative_to(Path.cwd()))
  return str(path)
