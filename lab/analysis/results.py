"""Results as pandas tables, read from the files of finished runs."""

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lab.analysis import find_results
from training.config import ConfigError
from training.files import write_atomically
from training.run_files.metrics_log import read_metrics
from training.run_files.result import FIELDS
from training.run_files.stored_run import check_log, intact_result
from training.run_files.times import TIMES, read_times

COLUMNS = tuple(name for name, field in FIELDS.items() if field.required)  # those that every result has
# Columns of results.csv only: whether the run enters its variant's mean (`yes`, or `no: ` and the reason), and the
# label of the variant.
CSV_ONLY = ('pooled', 'label')
NO_RESULTS = find_results.FoundResults([], [])
_DTYPES = {int: 'Int64', float: 'float64'}


def load(*workdirs: str | os.PathLike) -> pd.DataFrame:
  """Loads the finished runs under one or more directories.

  A result that is not at <workdir>/<experiment>/<variant>/seed_<k>, such as a copy or a renamed run, is left out with a
  warning: it would count as another seed. A run that is found twice, for example through a symbolic link, is one row.

  Args:
    *workdirs: work directories, or directories of experiments, variants or runs.

  Returns:
    One row per run, ordered by experiment, variant and seed within each directory. The columns are those of
    results.csv, then the other fields of result.json, then `workdir`, the argument that the run was found under, and
    `directory`, the run directory. Values that a run does not have are missing (NaN or NA).

  Raises:
    ConfigError: if a directory has no finished run.
  """
  if not workdirs:
    raise ConfigError("results.load needs a directory, as in results.load('runs')")
  records: list[dict[str, Any]] = []
  for workdir in workdirs:
    found = find_finished_runs(workdir)
    for line in found.left_out:
      warnings.warn(f'{workdir}: {line}', stacklevel=2)
    records += [{**record, 'workdir': str(workdir)} for record in found.records]
  return as_table(find_results.distinct(records))


def find_finished_runs(workdir: str | os.PathLike) -> find_results.FoundResults:
  """Finds the finished runs under a directory; see `find_results.find_results`.

  Raises:
    ConfigError: if there is no finished run, or a result.json cannot be read.
  """
  workdir = Path(workdir)
  if not workdir.is_dir():
    raise ConfigError(f'there is no directory {workdir}')
  found = find_results.find_results(workdir)
  if not found.records:
    raise _no_runs(workdir, found)
  return found


def find_finished_runs_of_experiment(experiment: str, directory: str | os.PathLike) -> find_results.FoundResults:
  """Finds the finished runs of one experiment in its directory; raises as `find_finished_runs`."""
  found = find_results.find_experiment_results(experiment, directory) if Path(directory).is_dir() else NO_RESULTS
  if not found.records:
    raise _no_runs(Path(directory), found)
  return found


def _no_runs(directory: Path, found: find_results.FoundResults) -> ConfigError:
  reason = f' ({found.left_out[0]})' if found.left_out else ''
  return ConfigError(f'{directory} has no finished run{reason}')


def as_table(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
  """The table that `load` returns, from records that have been read."""
  frame = pd.DataFrame.from_records(records)
  last = [name for name in ('workdir', 'directory') if name in frame.columns]
  others = [name for name in frame.columns if name not in COLUMNS and name not in last]
  frame = frame.reindex(columns=[*COLUMNS, *others, *last])
  for name in COLUMNS:
    if FIELDS[name].kind in _DTYPES:
      frame[name] = pd.to_numeric(frame[name]).astype(_DTYPES[FIELDS[name].kind])
  return frame


def load_metrics(run_directory: str | os.PathLike) -> pd.DataFrame:
  """Loads a run's metrics: one row per logged step (the index), one column per metric; NaN if null or not logged.

  Lists with one number per position are left out (see `load_positions`), and so is an incomplete last line, such as a
  power failure leaves. If the run has times, the columns `wall_time` and `train_seconds` hold them; see
  training/run_files/times.py.

  Raises:
    ConfigError: if there is no metrics.jsonl, a line before the last is damaged, or the file of a finished run has
      changed since the run ended.
  """
  times = read_times(Path(run_directory) / TIMES)
  rows = [
    {name: x for name, x in row.items() if not isinstance(x, list)}
    | (times[row['step']]._asdict() if row['step'] in times else {})
    for row in _read_rows(run_directory)
  ]
  return pd.DataFrame(rows or {'step': []}).set_index('step').astype('float64')


def load_positions(run_directory: str | os.PathLike) -> pd.DataFrame:
  """Loads a run's metrics by position, with inspect.level=full: one row per step and metric, one column per position.

  Raises:
    ConfigError: as `load_metrics`, or if nothing was logged by position.
  """
  lists = {
    (row['step'], name): values
    for row in _read_rows(run_directory)
    for name, values in row.items()
    if isinstance(values, list)
  }
  if not lists:
    raise ConfigError(f'{run_directory} has no metrics by position: train with --config.inspect.level=full')
  index = pd.MultiIndex.from_tuples(list(lists), names=['step', 'name'])
  return pd.DataFrame(list(lists.values()), index, dtype='float64')


def _read_rows(run_directory: str | os.PathLike) -> list[dict[str, Any]]:
  path = Path(run_directory) / 'metrics.jsonl'
  if not path.exists():
    raise ConfigError(
      f'there is no {path}: pass a run directory, such as runs/block/baseline/seed_0, or run its command again'
    )
  result = intact_result(path.parent)
  if result is not None:
    check_log(path.parent, result)
  return read_metrics(path)


def write_csv(frame: pd.DataFrame, path: str | os.PathLike) -> Path:
  """Writes results.csv: COLUMNS, and those of CSV_ONLY that the table has; missing values are empty."""
  columns = [*COLUMNS, *(name for name in CSV_ONLY if name in frame.columns)]
  return write_atomically(Path(path), frame[columns].to_csv(index=False, lineterminator='\n'))
