"""The experiments there are: every file of this folder that defines EXPERIMENT."""

import ast
import dataclasses
import importlib
from pathlib import Path

from experiments.experiment import Experiment
from training.config import check_names

FOLDER = Path(__file__).parent


def experiment_names() -> list[str]:
  """The names of the experiments, sorted; the files are read, not run."""
  return sorted(path.stem for path in FOLDER.glob('*.py') if _defines_experiment(path))


def find_experiment(name: str) -> Experiment:
  """The experiment of this name.

  Raises:
    ConfigError: if there is none, naming the nearest.
  """
  check_names([name], experiment_names(), 'experiment')
  module = importlib.import_module(f'experiments.{name}')
  return dataclasses.replace(module.EXPERIMENT, name=name)


def _defines_experiment(path: Path) -> bool:
  statements = ast.parse(path.read_text('utf8')).body
  targets = [target for statement in statements if isinstance(statement, ast.Assign) for target in statement.targets]
  return any(isinstance(target, ast.Name) and target.id == 'EXPERIMENT' for target in targets)
