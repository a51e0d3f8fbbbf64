"""Results as tables, read from the files that runs leave behind."""

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
from training.run_files.stored_run import check_log, intact_result
from training.run_files.times import NAME as TIMES
from training.run_files.times import read_times

COLUMNS = (
  'experiment', 'variant', 'seed', 'status', 'steps', 'tokens', 'parameters', 'flops_per_token', 'learning_rate',
  'val_loss', 'val_bits_per_byte', 'test_bits_per_byte', 'seconds', 'tokens_per_second', 'diverged_at',
)  # fmt: skip
_INTEGERS = ('seed', 'steps', 'tokens', 'parameters', 'flops_per_token', 'diverged_at')
# Of results.csv alone: whether a run is in its variant's mean, `yes`, or `no: ` and why; what its variant is called.
LAST = ('pooled', 'label')
NOTHING = find_results.FoundResults([], [])
_TEXTS = ('experiment', 'variant', 'status')


def load(*workdirs: str | os.PathLike) -> pd.DataFrame:
  """Every finished run under one directory or several, as a table.

  A result that is not at its place, <workdir>/<experiment>/<variant>/seed_<k>, is left out with a warning: a copy or a
  run moved aside would count as another seed. A run that is reached twice, as through a symbolic link, is one row.

  Args:
    *workdirs: each a work directory, or the directory of an experiment, a variant or a run.

  Returns:
    One row a run, ordered by experiment, variant and seed in each directory: the columns of results.csv, then
    whatever else result.json holds, then `workdir`, the argument it came from, and `directory`, the run's own. What a
    run does not have is missing (NaN or NA).

  Raises:
    ConfigError: where a directory holds no finished run.
  """
  if not workdirs:
    raise ConfigError("results.load needs a directory, as in results.load('runs')")
  records: list[dict[str, Any]] = []
  for workdir in workdirs:
    found = find_runs(workdir)
    for line in found.left_out:
      warnings.warn(f'{workdir}: {line}', stacklevel=2)
    records += [{**record, 'workdir': str(workdir)} for record in found.records]
  return as_table(find_results.distinct(records))


def find_runs(workdir: str | os.PathLike) -> find_results.FoundResults:
  """The finished runs under a directory, and what is left out; see `find_results.find_results`.

  Raises:
    ConfigError: where there is no finished run, or a result.json cannot be read.
  """
  workdir = Path(workdir)
  if not workdir.is_dir():
    raise ConfigError(f'there is no directory {workdir}')
  found = find_results.find_results(workdir)
  if not found.records:
    raise _no_runs(workdir, found)
  return found


def find_experiment_runs(experiment: str, directory: str | os.PathLike) -> find_results.FoundResults:
  """The finished runs of one experiment in its directory, and what is left out; errors as `find_runs`."""
  found = find_results.find_experiment_results(experiment, directory) if Path(directory).is_dir() else NOTHING
  if not found.records:
    raise _no_runs(Path(directory), found)
  return found


def _no_runs(directory: Path, found: find_results.FoundResults) -> ConfigError:
  aside = f' ({found.left_out[0]})' if found.left_out else ''
  return ConfigError(f'{directory} holds no finished run{aside}')


def as_table(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
  """The table that `load` returns, of records already read."""
  frame = pd.DataFrame.from_records(records)
  last = [name for name in ('workdir', 'directory') if name in frame.columns]
  others = [name for name in frame.columns if name not in COLUMNS and name not in last]
  frame = frame.reindex(columns=[*COLUMNS, *others, *last])
  for name in COLUMNS:
    if name not in _TEXTS:
      frame[name] = pd.to_numeric(frame[name]).astype('Int64' if name in _INTEGERS else 'float64')
  return frame


def load_metrics(run_directory: str | os.PathLike) -> pd.DataFrame:
  """What a run logged: one row a step (the index), one column a name; null, or not logged, is NaN.

  Lists, one number a position, are left out: see `load_positions`. So is a last line that was cut short, as by a
  power failure. Where the run kept times, `wall_time` and `train_seconds` say when; see training/run_files/times.py.

  Raises:
    ConfigError: where there is no metrics.jsonl, one with a damaged line before the last, or, beside a result, one that
      has changed since the run ended.
  """
  times = read_times(Path(run_directory) / TIMES)
  rows = [
    {name: x for name, x in row.items() if not isinstance(x, list)}
    | (times[row['step']]._asdict() if row['step'] in times else {})
    for row in _read_rows(run_directory)
  ]
  return pd.DataFrame(rows or {'step': []}).set_index('step').astype('float64')


def load_positions(run_directory: str | os.PathLike) -> pd.DataFrame:
  """What a run with inspect.level=full logged by position: one row for each step and name, one column a position.

  Raises:
    ConfigError: as `load_metrics`, or where nothing was logged by position.
  """
  lists = {
    (row['step'], name): values
    for row in _read_rows(run_directory)
    for name, values in row.items()
    if isinstance(values, list)
  }
  if not lists:
    raise ConfigError(f'{run_directory} logged nothing by position: that takes --config.inspect.level=full')
  index = pd.MultiIndex.from_tuples(list(lists), names=['step', 'name'])
  return pd.DataFrame(list(lists.values()), index, dtype='float64')


def _read_rows(run_directory: str | os.PathLike) -> list[dict[str, Any]]:
  path = Path(run_directory) / 'metrics.jsonl'
  if not path.exists():
    raise ConfigError(
      f'there is no {path}: give the directory of a run, as runs/block/baseline/seed_0, or run its command again'
    )
  result = intact_result(path.parent)
  if result is not None:
    check_log(path.parent, result)
  return read_metrics(path)


def write_csv(frame: pd.DataFrame, path: str | os.PathLike) -> Path:
  """Writes results.csv: COLUMNS, and what there is of LAST; one row a run, what is missing left empty."""
  columns = [*COLUMNS, *(name for name in LAST if name in frame.columns)]
  return write_atomically(Path(path), frame[columns].to_csv(index=False, lineterminator='\n'))
