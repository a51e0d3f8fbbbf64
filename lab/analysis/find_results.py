"""Which results under a directory count: one run has one place, <workdir>/<experiment>/<variant>/seed_<k>."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from training.config import ConfigError
from training.run_files.result import RESULT, read_result

OWN_FOLDERS = ('checkpoints', 'tensorboard', 'figures', 'tuning')  # hold no results of the experiment's own runs
DEPTH = 6  # folders below the directory that is read
SHOWN = 3  # results out of place in one folder that are named each
_SEED = re.compile(r'seed_(0|[1-9]\d*)')

Place = tuple[str, ...]
Record = dict[str, Any]


class FoundResults(NamedTuple):
  """What a directory holds.

  Attributes:
    records: every result.json that lies at its place, each with `directory`, ordered by experiment, variant and seed.
    left_out: the others, a line each, with the reason.
  """

  records: list[Record]
  left_out: list[str]


def find_results(directory: str | os.PathLike) -> FoundResults:
  """The runs of a work directory, or of one experiment, variant or run in it.

  The directory itself may have been renamed: what names it is the caller. Everything below must be where its
  result.json says that it is.

  Raises:
    ConfigError: if a result.json at its place is damaged.
  """
  root = Path(os.path.abspath(directory))
  read, left_out = _read_all(root)
  workdirs = [_workdir(path, _place(record)) for path, record in read]
  around = [workdir for workdir in workdirs if workdir is not None and workdir in (root, *root.parents)]
  top = min(around, key=lambda workdir: len(workdir.parts), default=None)
  own = [workdir == top for workdir in workdirs] if top else _below_renamed(root, read)
  # Work directories of their own inside this one, as runs/shakespeare in runs, are no mistake.
  inside = [workdir is not None and workdir not in (top, root) for workdir in workdirs]
  if not any(own):
    others = dict.fromkeys(workdir for workdir, is_inside in zip(workdirs, inside, strict=True) if is_inside)
    left_out += [f'{workdir.relative_to(root)} is a work directory of its own' for workdir in others if workdir]
  silent = [is_inside and (root == top or not any(own)) for is_inside in inside]
  kept = [_at(directory, root, *one) for one, counts in zip(read, own, strict=True) if counts]
  lost = [one for one, counts, quiet in zip(read, own, silent, strict=True) if not counts and not quiet]
  return FoundResults(_ordered(kept), [*left_out, *_out_of_place(root, lost)])


def find_experiment_results(experiment: str, directory: str | os.PathLike) -> FoundResults:
  """The runs of one experiment in its directory, <workdir>/<experiment>; errors as `find`."""
  root = Path(os.path.abspath(directory))
  read, left_out = _read_all(root)
  own = [
    record['experiment'] == experiment and path.relative_to(root).parts == _place(record)[1:] for path, record in read
  ]
  kept = [_at(directory, root, *one) for one, counts in zip(read, own, strict=True) if counts]
  lost = [one for one, counts in zip(read, own, strict=True) if not counts]
  return FoundResults(_ordered(kept), [*left_out, *_out_of_place(root, lost)])


def distinct(records: Sequence[Record]) -> list[Record]:
  """The records without those that are reached a second time, as through a symbolic link."""
  first = {os.path.realpath(record['directory']): record for record in reversed(records)}
  return [record for record in records if first[os.path.realpath(record['directory'])] is record]


def _read_all(root: Path) -> tuple[list[tuple[Path, Record]], list[str]]:
  """Every result under a directory with its folder, and a line for each that cannot be read and lies out of place."""
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
  if real in above:  # a link to a folder that it lies in
    return
  try:
    names = sorted(os.listdir(root))
  except OSError as error:
    raise ConfigError(f'{root} cannot be read: {error.strerror}') from None
  if RESULT in names:
    yield root
  for name in names if depth else ():
    if name not in OWN_FOLDERS and os.path.isdir(root / name):
      yield from _folders_with_results(root / name, depth - 1, (*above, real))


def _at(directory: str | os.PathLike, root: Path, path: Path, record: Record) -> Record:
  """The record with its directory, as seen from the one that was asked for."""
  return {**record, 'directory': str(Path(directory) / path.relative_to(root))}


def _place(record: Record) -> Place:
  """The last parts of the path of a run's directory: a tuning run has more than three."""
  return (*record['experiment'].split('/'), *record['variant'].split('/'), f'seed_{record["seed"]}')


def _workdir(path: Path, place: Place) -> Path | None:
  """The work directory that a run lies in; None if it is not where it says."""
  return path.parents[len(place) - 1] if path.parts[-len(place) :] == place else None


def _below_renamed(root: Path, read: Sequence[tuple[Path, Record]]) -> list[bool]:
  """Which runs are at their places below a directory that itself stands for an experiment, a variant or a run."""

  def fits(path: Path, record: Record) -> int:
    """How many parts of its place are below the directory; -1: it does not lie there."""
    below, place = path.relative_to(root).parts, _place(record)
    return len(below) if len(below) < len(place) and place[len(place) - len(below) :] == below else -1

  depths = [fits(path, record) for path, record in read]
  deepest = max(depths, default=-1)

  def stands_for(record: Record) -> Place:
    place = _place(record)
    return place[: len(place) - deepest]

  names = Counter(stands_for(record) for (_, record), depth in zip(read, depths, strict=True) if depth == deepest >= 0)
  most = max(sorted(names), key=lambda name: names[name], default=None)
  return [depth == deepest >= 0 and stands_for(record) == most for (_, record), depth in zip(read, depths, strict=True)]


def _out_of_place(root: Path, lost: Sequence[tuple[Path, Record]]) -> list[str]:
  """A line for each result that is not where it says, or for a folder that holds many of them."""
  by_folder: dict[Path, list[tuple[Path, Record]]] = {}
  for path, record in lost:
    below = path.relative_to(root)
    by_folder.setdefault(Path(*below.parts[:1]), []).append((below, record))
  lines = []
  for folder, results in by_folder.items():
    told = [f'{below} holds the result of {"/".join(_place(record))}' for below, record in results]
    if len(told) > SHOWN:
      lines.append(f'not counted: {len(told)} results in {folder} that belong elsewhere ({told[0]}, and so on)')
    else:
      lines += [f'not counted: {text}' for text in told]
  return lines


def _ordered(records: list[Record]) -> list[Record]:
  return sorted(records, key=lambda record: (record['experiment'], record['variant'], record['seed']))
