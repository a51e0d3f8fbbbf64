"""What there is to run: every file of experiments/ that defines EXPERIMENT, or REPRODUCTION, or both.

Files are parsed to find them, and only the one that is asked for is imported: a broken file breaks nothing else.
"""

import ast
import dataclasses
import functools
import importlib
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.core.declarations import check_experiment, check_reproduction
from lab.core.experiment import Experiment
from lab.core.moved_modules import describe_move
from lab.core.reproduction import Reproduction
from training.code_version import PROJECT
from training.config import ConfigError
from training.known_names import check_names

FOLDER = PROJECT / 'experiments'
CHECKS = {'EXPERIMENT': check_experiment, 'REPRODUCTION': check_reproduction}
REPLACED_BY = {'feed_forward': 'glu_variants'}  # names of removed experiments


def experiment_names() -> list[str]:
  """The names of the experiments, sorted; the files are parsed, not run."""
  return _files_that_define('EXPERIMENT')


def find_experiment(name: str) -> Experiment:
  """The experiment of this name.

  Raises:
    ConfigError: if there is none, naming the nearest; or if its file cannot be used, naming it and the line.
  """
  return _find(name, 'EXPERIMENT')


def declared(name: str) -> Experiment | None:
  """The experiment of this name; None if there is none, or its file cannot be used."""
  try:
    return find_experiment(name)
  except ConfigError:
    return None


def reproduction_names() -> list[str]:
  """The names of the reproductions, sorted; the files are parsed, not run."""
  return _files_that_define('REPRODUCTION')


def find_reproduction(name: str) -> Reproduction:
  """The reproduction of this name; raises as `find_experiment` does."""
  return _find(name, 'REPRODUCTION')


def unreadable_files() -> dict[str, str]:
  """For each file that cannot be parsed, which may be meant as an experiment or a reproduction, what is wrong."""
  return {path.stem: str(found) for path, found in _scan().items() if isinstance(found, ConfigError)}


def _find(name: str, variable: str) -> Any:
  path, scanned = FOLDER / f'{name}.py', _scan()
  found = scanned.get(path, {})
  if isinstance(found, ConfigError):
    raise found
  if variable == 'EXPERIMENT' and name in REPLACED_BY and path not in scanned:
    raise ConfigError(f'experiment {name!r} has been merged into {REPLACED_BY[name]!r}')
  check_names([name], _defining(variable, scanned), variable.lower())
  if '.' in name:
    raise ConfigError(f'{_shown(path)}: a module cannot have a dot in its name: rename it')
  try:
    value = getattr(importlib.import_module(f'experiments.{name}'), variable)
    CHECKS[variable](value)
  except ConfigError as error:
    raise ConfigError(f'{_shown(path)}, line {found[variable]}: {error}') from None
  except (Exception, SystemExit) as error:  # whatever the file may raise when it is run
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f', line {lines[-1]}' if lines else ''
    moved = describe_move(path, lines[-1]) if lines and isinstance(error, ImportError) else None
    raise ConfigError(f'{_shown(path)}{where}: {moved or f"{type(error).__name__}: {error}"}') from error
  return dataclasses.replace(value, name=name)


def _files_that_define(variable: str) -> list[str]:
  return _defining(variable, _scan())


def _defining(variable: str, scanned: Mapping[Path, Any]) -> list[str]:
  return [path.stem for path, found in scanned.items() if not isinstance(found, ConfigError) and variable in found]


def _scan() -> dict[Path, dict[str, int] | ConfigError]:
  """For each file the variables it assigns to at its top level, each with its line; or why it cannot be parsed.

  Hidden files are left out: the lock files of editors, and what macOS keeps beside a file.
  """
  paths = sorted(path for path in FOLDER.glob('*.py') if not path.name.startswith('.'))
  return {path: _assignments(path, _version(path)) for path in paths}


def _version(path: Path) -> tuple[int, int]:
  """Changes as the file does: when it was modified, and its size; zeros for a link to what is not there."""
  try:
    status = path.stat()
  except OSError:
    return 0, 0
  return status.st_mtime_ns, status.st_size


def _parsed(path: Path) -> ast.Module:
  if not path.is_file():
    raise ConfigError(f'{_shown(path)}: is not a file')
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # about its style; whoever runs it sees them
      return ast.parse(path.read_bytes())
  except SyntaxError as error:
    where = f', line {error.lineno}' if error.lineno else ''
    raise ConfigError(f'{_shown(path)}{where}: not Python: {error.msg}') from None
  except (ValueError, RecursionError, MemoryError) as error:  # null bytes, or nested too deep
    raise ConfigError(f'{_shown(path)}: not Python: {error}') from None
  except OSError as error:
    raise ConfigError(f'{_shown(path)}: cannot be read: {error.strerror}') from None


@functools.cache  # a fifth of a second for all files, several times a command
def _assignments(path: Path, version: tuple[int, int]) -> dict[str, int] | ConfigError:
  """The variables that this version of a file assigns to at its top level, also in an if, with or try there."""
  del version
  try:
    return {name: line for statement in _parsed(path).body for name, line in _assigned(statement)}
  except ConfigError as error:
    return error


def _assigned(statement: ast.AST) -> Iterator[tuple[str, int]]:
  if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
    return
  if isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
    yield statement.id, statement.lineno
  if isinstance(statement, ast.ImportFrom):
    yield from ((alias.asname or alias.name, statement.lineno) for alias in statement.names)
  for child in ast.iter_child_nodes(statement):
    if not isinstance(child, ast.expr) or isinstance(child, (ast.Name, ast.Tuple, ast.List, ast.Starred)):
      yield from _assigned(child)


def _shown(path: Path) -> str:
  return f'{path.parent.name}/{path.name}'
