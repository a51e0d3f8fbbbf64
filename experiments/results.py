"""Results as tables, read from the files that runs leave behind."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from training.config import ConfigError
from training.files import read_json, write_atomically
from training.metrics_log import read_metrics

COLUMNS = (
  'experiment', 'variant', 'seed', 'status', 'steps', 'tokens', 'parameters', 'flops_per_token', 'learning_rate',
  'val_loss', 'val_bits_per_byte', 'test_bits_per_byte', 'seconds', 'tokens_per_second', 'diverged_at',
)  # fmt: skip
_INTEGERS = ('seed', 'steps', 'tokens', 'parameters', 'flops_per_token', 'diverged_at')
_TEXTS = ('experiment', 'variant', 'status')
_RUN_PATTERNS = ('result.json', 'seed_*/result.json', '*/seed_*/result.json', '*/*/seed_*/result.json')


def load(workdir: str | os.PathLike) -> pd.DataFrame:
  """Every finished run under a directory, as a table.

  Args:
    workdir: a work directory, or the directory of an experiment, a variant or a run.

  Returns:
    One row a run, ordered by experiment, variant and seed: the columns of results.csv, then whatever else
    result.json holds, then `directory`, the run's own. What a run does not have is missing (NaN or NA).

  Raises:
    ConfigError: where there is no finished run, saying what to run.
  """
  return as_table(load_records(workdir))


def as_table(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
  """The table that `load` returns, of records already read."""
  frame = pd.DataFrame.from_records(records)
  others = [name for name in frame.columns if name not in COLUMNS and name != 'directory']
  frame = frame.reindex(columns=[*COLUMNS, *others, 'directory'])
  for name in COLUMNS:
    if name not in _TEXTS:
      frame[name] = pd.to_numeric(frame[name]).astype('Int64' if name in _INTEGERS else 'float64')
  return frame


def load_records(workdir: str | os.PathLike) -> list[dict[str, Any]]:
  """Every finished run under a directory: its result.json as a dict, and `directory`, a string.

  Raises:
    ConfigError: where there is no finished run, or a result.json cannot be read.
  """
  workdir = Path(workdir)
  if not workdir.is_dir():
    raise ConfigError(f'there is no directory {workdir}: make it with python train.py --workdir={workdir}')
  paths = [path for pattern in _RUN_PATTERNS for path in workdir.glob(pattern)]
  if not paths:
    raise ConfigError(f'{workdir} holds no finished run: make some with python train.py --workdir={workdir}')
  records = [{**(read_json(path) or {}), 'directory': str(path.parent)} for path in paths]
  return sorted(records, key=lambda record: (record['experiment'], record['variant'], record['seed']))


def load_metrics(run_directory: str | os.PathLike) -> pd.DataFrame:
  """What a run logged: one row a step (the index), one column a name; null, or not logged, is NaN.

  Lists, one number a position, are left out: see `load_positions`. So is a last line that was cut short, as by a
  power failure.

  Raises:
    ConfigError: where there is no metrics.jsonl, or one with a damaged line before the last.
  """
  rows = [{name: x for name, x in row.items() if not isinstance(x, list)} for row in _read_rows(run_directory)]
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
  return read_metrics(path)


def write_csv(frame: pd.DataFrame, path: str | os.PathLike) -> Path:
  """Writes results.csv: exactly COLUMNS, one row a run, what is missing left empty."""
  return write_atomically(Path(path), frame[list(COLUMNS)].to_csv(index=False, lineterminator='\n'))
