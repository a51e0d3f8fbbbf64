"""The experiments and reproductions: every file in experiments/ that defines EXPERIMENT, REPRODUCTION, or both.

Files are parsed to find the definitions. A file is imported only when its experiment is requested, so an invalid file
does not affect the others.
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
from lab.core.names import check_experiment_name
from lab.core.reproduction import Reproduction
from training import ideas
from training.code_version import PROJECT
from training.config import ConfigError
from training.known_names import check_names, nearest_name
from training.paths import parse_path

FOLDER = PROJECT / 'experiments'
CHECKS = {'EXPERIMENT': check_experiment, 'REPRODUCTION': check_reproduction}
REPLACED_BY = {'feed_forward': 'glu_variants'}  # names of removed experiments


def experiment_names() -> list[str]:
  """The names of all experiments, sorted. Their files are parsed, but not imported."""
  return _files_that_define('EXPERIMENT')


def find_experiment(name: str) -> Experiment:
  """The experiment with this name.

  Raises:
    ConfigError: if there is none (the message suggests the most similar name) or its file is invalid (the message has
      the line).
  """
  return _find(name, 'EXPERIMENT')


def is_path(experiment: str) -> bool:
  """Whether the value of --experiment is the path of a file, and not the name of an experiment."""
  return (
    '/' in experiment
    or experiment.endswith('.py')
    or (experiment not in experiment_names() and Path(experiment).exists())
  )


def find(experiment: str) -> Experiment:
  """The experiment that --experiment specifies, by its name or by the path of its file."""
  return load_experiment(experiment) if is_path(experiment) else find_experiment(experiment)


def load_experiment(text: str) -> Experiment:
  """The experiment in a file anywhere on the disk, which may also register parts of the model; see training/ideas.py.

  Its name is that of the file, without `.py`. A file in experiments/ is the experiment of its name.

  Raises:
    ConfigError: if there is no such file, it is invalid (the message has the line), or its name is that of another
      experiment.
  """
  path = find_file(text)
  if path.parent.resolve() == FOLDER.resolve():
    return find_experiment(path.stem)
  if path.stem in (*experiment_names(), *REPLACED_BY, 'custom'):
    raise ConfigError(f'{path}: {path.stem!r} is the name of a built-in experiment: rename the file')
  try:
    check_experiment_name(path.stem)
    lines = {name: line for statement in _parse(path).body for name, line in _assigned(statement)}
  except ConfigError as error:
    message = str(error).removeprefix(_format_path(path)).removeprefix(': ').removeprefix(', ')
    raise ConfigError(f'{path}{", " if message.startswith("line ") else ": "}{message}') from None
  if 'EXPERIMENT' not in lines:
    raise ConfigError(f'{path}: defines no EXPERIMENT = Experiment(question=..., variants=...)')
  try:
    value: Any = getattr(ideas.load(path), 'EXPERIMENT', None)
  except ConfigError as error:
    line = ideas.line_in(error.__cause__, path.resolve()) if isinstance(error.__cause__, ImportError) else None
    moved = describe_move(path, line) if line else None
    raise (ConfigError(f'{path}, line {line}: {moved}') if moved else error) from None
  try:
    check_experiment(value)
  except ConfigError as error:
    raise ConfigError(f'{path}, line {lines["EXPERIMENT"]}: {error}') from None
  return dataclasses.replace(value, name=path.stem)


def find_file(text: str) -> Path:
  """The absolute path of the experiment file that --experiment specifies by its path; the file is not read.

  Raises:
    ConfigError: if there is no such file, or it is not named like a Python file.
  """
  path = parse_path(text, '--experiment').absolute()
  if path.is_dir():
    raise ConfigError(f'--experiment={text}: is a folder: pass a Python file that defines EXPERIMENT')
  if not path.is_file():
    others = [str(Path(text).parent / other.name) for other in path.parent.glob('*.py')]
    raise ConfigError(f'--experiment={text}: no such file{nearest_name(text, others)}')
  if path.suffix != '.py':
    raise ConfigError(f'--experiment={text}: the name of a Python file ends in .py: rename it')
  return path


def find_experiment_or_none(name: str) -> Experiment | None:
  """The experiment with this name; None if there is none, or its file is invalid."""
  try:
    return find_experiment(name)
  except ConfigError:
    return None


def reproduction_names() -> list[str]:
  """The names of all reproductions, sorted. Their files are parsed, but not imported."""
  return _files_that_define('REPRODUCTION')


def find_reproduction(name: str) -> Reproduction:
  """The reproduction with this name; raises ConfigError as `find_experiment` does."""
  return _find(name, 'REPRODUCTION')


def unreadable_files() -> list[str]:
  """A message for each file that cannot be parsed, with its name and the error."""
  return [str(found) for found in _scan().values() if isinstance(found, ConfigError)]


def _find(name: str, variable: str) -> Any:
  path, scanned = FOLDER / f'{name}.py', _scan()
  found = scanned.get(path, {})
  if isinstance(found, ConfigError):
    raise found
  if variable == 'EXPERIMENT' and name in REPLACED_BY and path not in scanned:
    raise ConfigError(f'experiment {name!r} has been merged into {REPLACED_BY[name]!r}')
  check_names([name], _defining(variable, scanned), variable.lower())
  if '.' in name:
    raise ConfigError(f'{_format_path(path)}: the name of a module must not contain a dot: rename it')
  try:
    value = getattr(importlib.import_module(f'experiments.{name}'), variable)
    CHECKS[variable](value)
  except ConfigError as error:
    raise ConfigError(f'{_format_path(path)}, line {found[variable]}: {error}') from None
  except (Exception, SystemExit) as error:  # importing the file may raise anything
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    lines = [frame.lineno for frame in frames if frame.lineno]
    where = f', line {lines[-1]}' if lines else ''
    moved = describe_move(path, lines[-1]) if lines and isinstance(error, ImportError) else None
    raise ConfigError(f'{_format_path(path)}{where}: {moved or f"{type(error).__name__}: {error}"}') from error
  return dataclasses.replace(value, name=name)


def _files_that_define(variable: str) -> list[str]:
  return _defining(variable, _scan())


def _defining(variable: str, scanned: Mapping[Path, Any]) -> list[str]:
  return [path.stem for path, found in scanned.items() if not isinstance(found, ConfigError) and variable in found]


def _scan() -> dict[Path, dict[str, int] | ConfigError]:
  """For each file, the lines of the variables that it assigns at its top level; or the error if it cannot be parsed.

  Hidden files are skipped, such as the lock files of editors and the metadata files of macOS.
  """
  paths = sorted(path for path in FOLDER.glob('*.py') if not path.name.startswith('.'))
  return {path: _assignments(path, _version(path)) for path in paths}


def _version(path: Path) -> tuple[int, int]:
  """The modification time and the size of a file, to detect changes; zeros if it does not exist (a broken link)."""
  try:
    status = path.stat()
  except OSError:
    return 0, 0
  return status.st_mtime_ns, status.st_size


def _parse(path: Path) -> ast.Module:
  if not path.is_file():
    raise ConfigError(f'{_format_path(path)}: is not a file')
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # syntax warnings, which importing the file shows
      return ast.parse(path.read_bytes())
  except SyntaxError as error:
    where = f', line {error.lineno}' if error.lineno else ''
    raise ConfigError(f'{_format_path(path)}{where}: not valid Python: {error.msg}') from None
  except (ValueError, RecursionError, MemoryError) as error:  # null bytes, or nested too deeply
    raise ConfigError(f'{_format_path(path)}: not valid Python: {error}') from None
  except OSError as error:
    raise ConfigError(f'{_format_path(path)}: cannot be read: {error.strerror}') from None


@functools.cache  # parsing all files takes a fifth of a second, and a command does it several times
def _assignments(path: Path, version: tuple[int, int]) -> dict[str, int] | ConfigError:
  """The variables that this version of a file assigns at its top level, also inside if, with and try statements."""
  del version
  try:
    return {name: line for statement in _parse(path).body for name, line in _assigned(statement)}
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


def _format_path(path: Path) -> str:
  return f'{path.parent.name}/{path.name}'
