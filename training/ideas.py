"""Experiment files that register parts of the model: loads them by path, and knows their texts by their checksums.

Loading a file executes it. The config of a run only names a file: reading a run never executes it. It is executed if
the user names it in the same command, or if a worker trains a run of such a command.
"""

import ast
import hashlib
import importlib.util
import os
import re
import shlex
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import jax

from model.config import ModelConfig
from model.field_checks import ConfigError
from model.registry import REGISTRIES, loading

PROJECT = Path(__file__).parent.parent
RECORDED = re.compile('[^/]+ sha256 [0-9a-f]{64}')  # ModelConfig.idea
INSTALLED = tuple({Path(sysconfig.get_path(name)) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')})


class _Loaded(NamedTuple):
  checksum: str
  module: ModuleType


_loaded: dict[Path, _Loaded] = {}


def load(path: Path) -> ModuleType:
  """Executes a Python file, which may register parts of the model. The same text is executed once.

  A file with a new text replaces the parts that it registered before. Nothing is written next to the file.

  Args:
    path: the file.

  Raises:
    ConfigError: if it cannot be read, is not valid Python, raises an error (the message has the line), registers an
      invalid part, or imports a file of its own folder, whose text would not be part of the identity of its runs.
  """
  file = path.resolve()
  text = _read(file)
  checksum = hashlib.sha256(text).hexdigest()
  if file in _loaded and _loaded[file].checksum == checksum:
    return _loaded[file].module
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', SyntaxWarning)
      tree = ast.parse(text)
      code = compile(text, str(file), 'exec', dont_inherit=True)
  except SyntaxError as error:
    raise ConfigError(f'{path}{_format_line(error.lineno)}: not valid Python: {error.msg}') from None
  except (ValueError, RecursionError, MemoryError) as error:  # null bytes, or nested too deeply
    raise ConfigError(f'{path}: not valid Python: {error}') from None
  for line, name in _imports(tree):
    if _is_neighbour(name, file.parent):
      raise ConfigError(
        f'{path}, line {line}: imports {name or "a relative module"} from its own folder, but only the text of this '
        'file identifies its runs: move what it needs into this file'
      )
  module = ModuleType(f'idea_{checksum[:16]}')
  module.__file__ = str(file)
  _loaded.pop(file, None)
  sys.modules[module.__name__] = module  # dataclasses look their module up
  with loading(file):
    try:
      exec(code, module.__dict__)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
      where = f'{path}{_format_line(line_in(error, file))}'
      if isinstance(error, ConfigError):
        raise ConfigError(f'{where}: {str(error).removeprefix(f"{file}: ")}') from None
      raise ConfigError(f'{where}: {type(error).__name__}: {" ".join(str(error).split())}') from error
    for name, value in vars(module).items():
      if isinstance(value, jax.Array):
        raise ConfigError(
          f'{path}: {name} is an array on a device, computed as the file is loaded, also by processes that must not '
          'use it: make it a NumPy array, or compute it in a method'
        )
    if _read(file) != text:
      raise ConfigError(f'{path} was changed while it was loaded: run the same command again')
  _loaded[file] = _Loaded(checksum, module)
  return module


def load_named(model: ModelConfig) -> None:
  """Loads the file that registered a part of a model, unless its text is already loaded; it executes the file.

  Only for a model that the user's command has named, as in a worker that trains a run of that command.

  Args:
    model: of a config whose file may not be loaded.

  Raises:
    ConfigError: if the file is gone or has another text, or cannot be loaded.
  """
  if model.is_loaded:
    return
  path = Path(model.idea_file)
  what = _describe_use(model, 'this run')
  if not path.is_file():
    raise ConfigError(f'{path} does not exist: {what}; restore the file with the same text')
  _check_text(path, hashlib.sha256(_read(path)).hexdigest(), model, what)
  load(path)
  if not is_loaded(model.idea):
    raise ConfigError(f'{path} registers no part of the model, but {what}: the config.json of the run is damaged')


def check_loaded(model: ModelConfig, run: Path) -> None:
  """Refuses a recorded model with a part of a file that is not loaded; executes and reads nothing.

  Args:
    model: of the config of a recorded run.
    run: the directory of the run, for messages.

  Raises:
    ConfigError: naming the part and its file, and the flag with which the user allows that the file is executed; or
      stating that the file has changed or is gone.
  """
  if model.is_loaded:
    return
  path, what = Path(model.idea_file), _describe_use(model, str(run))
  for file, loaded in _loaded.items():
    if file == path or file.name == _name(model.idea):
      _check_text(file, loaded.checksum, model, what)
  if not os.path.isfile(path):  # also if its name is too long
    raise ConfigError(f'{path} does not exist: {what}; restore it, or add --experiment with the path of the same text')
  raise ConfigError(f'{what}: add {shlex.quote(f"--experiment={path}")} to execute that file')


def _check_text(path: Path, checksum: str, model: ModelConfig, what: str) -> None:
  """Raises ConfigError if the text of a file is not the one that registered a part of a recorded model."""
  if checksum != _checksum(model.idea):
    raise ConfigError(
      f'{path} has changed: {what}, and its text is now sha256 {checksum[:8]}: restore it for this run, or train the '
      'changed idea in another --workdir'
    )


def _describe_use(model: ModelConfig, run: str) -> str:
  """'runs/x uses the connection my_gate that my_gate.py (sha256 1f2e3d4c) registers'."""
  parts = ' and the '.join(model.own_parts)
  return (
    f'{run} uses {f"the {parts}" if parts else "a part"} that {_name(model.idea)} (sha256 {_checksum(model.idea)[:8]}) '
    'registers'
  )


def is_loaded(idea: str) -> bool:
  """Whether the text of this name and checksum has registered the parts that exist now."""
  checksums = {registry.checksum(name) for registry in REGISTRIES for name in registry if registry.origin(name)}
  return _checksum(idea) in checksums


def describe_idea(idea: str) -> str:
  """'my_gate.py sha256 1f2e3d4c', with the first digits of the checksum."""
  return f'{_name(idea)} sha256 {_checksum(idea)[:8]}'


def line_in(error: BaseException, file: Path) -> int | None:
  """The last line of a file that was executing when an error was raised; None if there is none."""
  frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
  return frames[-1].lineno if frames else None


def _name(idea: str) -> str:
  return idea.rpartition(' sha256 ')[0]


def _checksum(idea: str) -> str:
  return idea.rpartition(' ')[2]


def _read(file: Path) -> bytes:
  try:
    return file.read_bytes()
  except OSError as error:
    raise ConfigError(f'{file}: cannot be read: {error.strerror}') from None


def _format_line(line: int | None) -> str:
  return f', line {line}' if line else ''


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
  """The line and the name of each module that is imported anywhere in a file; an empty name for a relative import."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield node.lineno, '' if node.level else node.module or ''


def _is_neighbour(name: str, folder: Path) -> bool:
  """Whether a module is in a folder or below it, and neither installed nor one of the project's packages."""
  if not name:
    return True
  top = name.partition('.')[0]
  try:
    spec = importlib.util.find_spec(top)
  except ValueError:  # a module without a spec, such as __main__
    return False
  if spec is None:
    return (folder / f'{top}.py').is_file() or (folder / top).is_dir()
  places = [Path(place).resolve() for place in (spec.submodule_search_locations or [spec.origin or '/'])]
  packages = [file.parent for file in PROJECT.glob('*/__init__.py')]
  return any(place.is_relative_to(folder) and not _is_below(place, (*INSTALLED, *packages)) for place in places)


def _is_below(path: Path, folders: tuple[Path, ...]) -> bool:
  return any(path.is_relative_to(folder.resolve()) for folder in folders)
