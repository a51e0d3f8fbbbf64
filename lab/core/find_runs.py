"""Finds the runs in a work directory, finished or not, each with its stored config."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lab.core.run import Run
from training.config import Config, ConfigError
from training.run_files.result import read_result
from training.run_files.run_directory import TUNING_POINT
from training.run_files.stored_run import read_config

_SEED = re.compile(r'seed_(0|[1-9][0-9]*)')


class FoundRuns(NamedTuple):
  """The runs in a work directory.

  Attributes:
    runs: sorted by experiment, variant and seed; the tuning runs of an experiment follow its other runs.
    damaged: a message for each run whose config or result cannot be read.
    without_config: the directories of runs that were submitted but have not started, or failed while starting.
  """

  runs: list[Run]
  damaged: list[str]
  without_config: list[Path]


def find_runs(workdir: Path, experiment: str | None = None) -> FoundRuns:
  """Finds the runs in a work directory. The files that registered parts of their models are not executed.

  Args:
    workdir: the work directory.
    experiment: find only the runs of this experiment, without its tuning runs. None: find all runs.
  """
  found = FoundRuns([], [], [])
  for name in sorted(_folders(workdir)) if experiment is None else [experiment]:
    candidates = list(_run_folders(workdir / name, name))
    if experiment is None:
      candidates += _tuning_folders(workdir / name, name)
    for run_experiment, variant, directory in candidates:
      try:
        flat = read_config(directory)
        if flat is None:
          found.without_config.append(directory)
          continue
        result, seed = read_result(directory) or {}, int(directory.name.removeprefix('seed_'))
        tuned = result.get('learning_rate_tuned', False)
        found.runs.append(Run(run_experiment, variant, seed, Config.from_flat(flat), directory, tuned))
      except ConfigError as error:
        found.damaged.append(f'{directory}: {error}')
  return found


def describe_runs(workdir: Path) -> str:
  """Describes the runs in a work directory in one line: 'block (20 runs of baseline, relu), custom (1 run of mine)'."""
  runs = find_runs(workdir).runs
  parts = []
  for name in dict.fromkeys(run.experiment for run in runs):
    in_experiment = [run for run in runs if run.experiment == name]
    variants = list(dict.fromkeys(run.variant for run in in_experiment))
    count = f'{len(in_experiment)} run{"s" if len(in_experiment) > 1 else ""}'
    more = f' and {len(variants) - 4} more' if len(variants) > 4 else ''
    parts.append(f'{name} ({count} of {", ".join(variants[:4])}{more})')
  return ', '.join(parts)


def _run_folders(folder: Path, experiment: str) -> Iterator[tuple[str, str, Path]]:
  for variant in _folders(folder):
    if variant != 'tuning':
      yield from ((experiment, variant, directory) for directory in _seed_folders(folder / variant))


def _tuning_folders(folder: Path, experiment: str) -> Iterator[tuple[str, str, Path]]:
  for variant in _folders(folder / 'tuning'):
    for point in _folders(folder / 'tuning' / variant):
      if TUNING_POINT.fullmatch(point):
        directories = _seed_folders(folder / 'tuning' / variant / point)
        yield from ((f'{experiment}/tuning', f'{variant}/{point}', directory) for directory in directories)


def _seed_folders(folder: Path) -> list[Path]:
  names = [name for name in _folders(folder) if _SEED.fullmatch(name)]
  return [folder / name for name in sorted(names, key=lambda name: int(name.removeprefix('seed_')))]


def _folders(folder: Path) -> list[str]:
  try:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith('.'))
  except (FileNotFoundError, NotADirectoryError):
    return []
  except OSError as error:
    raise ConfigError(f'cannot read the folder {folder}: {error.strerror}') from None
