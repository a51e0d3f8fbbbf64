"""What there is to run: every file of this folder that defines EXPERIMENT, or REPRODUCTION, or both."""

import ast
import dataclasses
import importlib
from pathlib import Path
from typing import Any

from experiments.experiment import Experiment
from experiments.reproduction import Reproduction
from training.config import check_names

FOLDER = Path(__file__).parent


def experiment_names() -> list[str]:
  """The names of the experiments, sorted; the files are read, not run."""
  return _files_that_define('EXPERIMENT')


def find_experiment(name: str) -> Experiment:
  """The experiment of this name.

  Raises:
    ConfigError: if there is none, naming the nearest.
  """
  return _find(name, 'EXPERIMENT')


def reproduction_names() -> list[str]:
  """The names of the reproductions, sorted; the files are read, not run."""
  return _files_that_define('REPRODUCTION')


def find_reproduction(name: str) -> Reproduction:
  """The reproduction of this name.

  Raises:
    ConfigError: if there is none, naming the nearest.
  """
  return _find(name, 'REPRODUCTION')


def _find(name: str, variable: str) -> Any:
  check_names([name], _files_that_define(variable), variable.lower())
  declared = getattr(importlib.import_module(f'experiments.{name}'), variable)
  return dataclasses.replace(declared, name=name)


def _files_that_define(variable: str) -> list[str]:
  return sorted(path.stem for path in FOLDER.glob('*.py') if variable in _assigned(path))


def _assigned(path: Path) -> set[str]:
  """The variables that a file assigns to at its top level."""
  statements = ast.parse(path.read_text('utf8')).body
  targets = [target for statement in statements if isinstance(statement, ast.Assign) for target in statement.targets]
  return {target.id for target in targets if isinstance(target, ast.Name)}
