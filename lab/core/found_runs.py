"""The runs that lie in a work directory, finished or not, each with the config it is trained with."""

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
  """What a work directory holds.

  Attributes:
    runs: by experiment, variant and seed; those of a tuning after the others of their experiment.
    damaged: a line for each run whose config or result cannot be read.
    waiting: the directories of runs that were submitted, or failed before they had a config.
  """

  runs: list[Run]
  damaged: list[str]
  waiting: list[Path]


def found_runs(workdir: Path, experiment: str | None = None) -> FoundRuns:
  """Finds the runs in a work directory: of one experiment alone, without its tuning, or all of them."""
  found = FoundRuns([], [], [])
  for name in sorted(_folders(workdir)) if experiment is None else [experiment]:
    places = list(_run_folders(workdir / name, name))
    if experiment is None:
      places += _tuning_folders(workdir / name, name)
    for owner, variant, directory in places:
      try:
        flat = read_config(directory)
        if flat is None:
          found.waiting.append(directory)
          continue
        result, seed = read_result(directory) or {}, int(directory.name.removeprefix('seed_'))
        tuned = result.get('learning_rate_tuned', False)
        found.runs.append(Run(owner, variant, seed, Config.from_flat(flat), directory, tuned))
      except ConfigError as error:
        found.damaged.append(f'{directory}: {error}')
  return found


def describe(workdir: Path) -> str:
  """What a work directory holds, for a message: 'block (20 runs of baseline, relu), custom (1 run of mine)'."""
  runs = found_runs(workdir).runs
  parts = []
  for name in dict.fromkeys(run.experiment for run in runs):
    own = [run for run in runs if run.experiment == name]
    variants = list(dict.fromkeys(run.variant for run in own))
    more = f' and {len(variants) - 4} more' if len(variants) > 4 else ''
    parts.append(f'{name} ({len(own)} run{"s" if len(own) > 1 else ""} of {", ".join(variants[:4])}{more})')
  return ', '.join(parts)


def _run_folders(folder: Path, experiment: str) -> Iterator[tuple[str, str, Path]]:
  for variant in _folders(folder):
    if variant != 'tuning':
      yield from ((experiment, variant, directory) for directory in _seeds(folder / variant))


def _tuning_folders(folder: Path, experiment: str) -> Iterator[tuple[str, str, Path]]:
  for variant in _folders(folder / 'tuning'):
    for point in _folders(folder / 'tuning' / variant):
      if TUNING_POINT.fullmatch(point):
        directories = _seeds(folder / 'tuning' / variant / point)
        yield from ((f'{experiment}/tuning', f'{variant}/{point}', directory) for directory in directories)


def _seeds(folder: Path) -> list[Path]:
  names = [name for name in _folders(folder) if _SEED.fullmatch(name)]
  return [folder / name for name in sorted(names, key=lambda name: int(name.removeprefix('seed_')))]


def _folders(folder: Path) -> list[str]:
  try:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith('.'))
  except (FileNotFoundError, NotADirectoryError):
    return []
  except OSError as error:
    raise ConfigError(f'{folder} cannot be looked into: {error.strerror}') from None
