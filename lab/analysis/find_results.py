"""Finds the results to read under a directory: those at <workdir>/<experiment>/<variant>/seed_<k>."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from training.config import ConfigError
from training.run_files.result import RESULT, read_result

SKIPPED_FOLDERS = ('checkpoints', 'tensorboard', 'figures', 'tuning')  # hold no results of the experiment's own runs
DEPTH = 6  # levels of folders that are searched
SHOWN = 3  # misplaced results in one folder that are listed one by one
_SEED = re.compile(r'seed_(0|[1-9]\d*)')

RunPath = tuple[str, ...]  # experiment, variant and seed folder: the last parts of a run's directory
Record = dict[str, Any]


class FoundResults(NamedTuple):
  """The results under a directory.

  Attributes:
    records: every result.json at the location it names, each with `directory`; by experiment, variant and seed.
    left_out: a line for each other result, with the reason for leaving it out.
  """

  records: list[Record]
  left_out: list[str]


def find_results(directory: str | os.PathLike) -> FoundResults:
  """Finds the results in a work directory, or in the directory of an experiment, variant or run.

  The directory itself may have been renamed; every run below it must be at the location that its result.json names.

  Raises:
    ConfigError: if the result.json of a seed folder is damaged.
  """
  root = Path(os.path.abspath(directory))
  read, left_out = _read_all(root)
  workdirs = [_workdir(path, _run_path(record)) for path, record in read]
  enclosing = [workdir for workdir in workdirs if workdir is not None and workdir in (root, *root.parents)]
  top = min(enclosing, key=lambda workdir: len(workdir.parts), default=None)
  counted = [workdir == top for workdir in workdirs] if top else _counted_below_renamed(root, read)
  # A separate work directory inside this one, such as runs/shakespeare in runs, is not reported as misplaced.
  nested = [workdir is not None and workdir not in (top, root) for workdir in workdirs]
  if not any(counted):
    others = dict.fromkeys(workdir for workdir, is_nested in zip(workdirs, nested, strict=True) if is_nested)
    left_out += [f'{workdir.relative_to(root)} is a separate work directory' for workdir in others if workdir]
  expected = [is_nested and (root == top or not any(counted)) for is_nested in nested]
  found = [_with_directory(directory, root, *one) for one, counts in zip(read, counted, strict=True) if counts]
  misplaced = [one for one, *fine in zip(read, counted, expected, strict=True) if not any(fine)]
  return FoundResults(_ordered(found), [*left_out, *_describe_misplaced(root, misplaced)])


def find_experiment_results(experiment: str, directory: str | os.PathLike) -> FoundResults:
  """Finds the results of one experiment in its directory, <workdir>/<experiment>; raises as `find_results`."""
  root = Path(os.path.abspath(directory))
  read, left_out = _read_all(root)
  counted = [
    record['experiment'] == experiment and path.relative_to(root).parts == _run_path(record)[1:]
    for path, record in read
  ]
  found = [_with_directory(directory, root, *one) for one, counts in zip(read, counted, strict=True) if counts]
  misplaced = [one for one, counts in zip(read, counted, strict=True) if not counts]
  return FoundResults(_ordered(found), [*left_out, *_describe_misplaced(root, misplaced)])


def distinct(records: Sequence[Record]) -> list[Record]:
  """Drops duplicate records of a run that was found twice, for example through a symbolic link."""
  first = {os.path.realpath(record['directory']): record for record in reversed(records)}
  return [record for record in records if first[os.path.realpath(record['directory'])] is record]


def _read_all(root: Path) -> tuple[list[tuple[Path, Record]], list[str]]:
  """Every result under a directory with its folder, and a line for each unreadable one outside a seed folder."""
  read, unreadable = [], []
  for path in _folders_with_results(root):
    try:
      read.append((path, read_result(path) or {}))
    except ConfigError as error:
      if _SEED.fullmatch(path.name):
        raise
      unreadable.append(f'not counted: {path.relative_to(root)} ({error})')
  return read, unreadable


def _folders_with_results(root: Path, depth: int = DEPTH, above: tuple[str, ...] = ()) -> Iterator[Path]:
  real = os.path.realpath(root)
  if real in above:  # a link to a folder that contains it
    return
  try:
    names = sorted(os.listdir(root))
  except OSError as error:
    raise ConfigError(f'{root} cannot be read: {error.strerror}') from None
  if RESULT in names:
    yield root
  for name in names if depth else ():
    if name not in SKIPPED_FOLDERS and os.path.isdir(root / name):
      yield from _folders_with_results(root / name, depth - 1, (*above, real))


def _with_directory(directory: str | os.PathLike, root: Path, path: Path, record: Record) -> Record:
  """The record with its directory, relative to the path that the caller passed."""
  return {**record, 'directory': str(Path(directory) / path.relative_to(root))}


def _run_path(record: Record) -> RunPath:
  """The path of a run below its work directory; that of a tuning run has more than three parts."""
  return (*record['experiment'].split('/'), *record['variant'].split('/'), f'seed_{record["seed"]}')


def _workdir(path: Path, run_path: RunPath) -> Path | None:
  """The work directory of a run; None if the run is not at the location that its result names."""
  return path.parents[len(run_path) - 1] if path.parts[-len(run_path) :] == run_path else None


def _counted_below_renamed(root: Path, read: Sequence[tuple[Path, Record]]) -> list[bool]:
  """Whether each run counts below `root`, the renamed directory of an experiment, a variant or a run.

  The results below it decide which one it is: the one that most of them name.
  """

  def matching_parts(path: Path, record: Record) -> int:
    """The number of parts of the run's path that lie below `root`; -1 if they do not match."""
    below, run_path = path.relative_to(root).parts, _run_path(record)
    return len(below) if len(below) < len(run_path) and run_path[len(run_path) - len(below) :] == below else -1

  depths = [matching_parts(path, record) for path, record in read]
  deepest = max(depths, default=-1)

  def original_name(record: Record) -> RunPath:
    run_path = _run_path(record)
    return run_path[: len(run_path) - deepest]

  matching = [depth == deepest >= 0 for depth in depths]
  names = Counter(original_name(record) for (_, record), matches in zip(read, matching, strict=True) if matches)
  most = max(sorted(names), key=lambda name: names[name], default=None)
  return [matches and original_name(record) == most for (_, record), matches in zip(read, matching, strict=True)]


def _describe_misplaced(root: Path, misplaced: Sequence[tuple[Path, Record]]) -> list[str]:
  """A line for each result that is not at the location it names; one line for a folder with many of them."""
  by_folder: dict[Path, list[tuple[Path, Record]]] = {}
  for path, record in misplaced:
    below = path.relative_to(root)
    by_folder.setdefault(Path(*below.parts[:1]), []).append((below, record))
  lines = []
  for folder, results in by_folder.items():
    texts = [f'{below} holds the result of {"/".join(_run_path(record))}' for below, record in results]
    if len(texts) > SHOWN:
      lines.append(f'not counted: {len(texts)} misplaced results in {folder} ({texts[0]}, ...)')
    else:
      lines += [f'not counted: {text}' for text in texts]
  return lines


def _ordered(records: list[Record]) -> list[Record]:
  return sorted(records, key=lambda record: (record['experiment'], record['variant'], record['seed']))
