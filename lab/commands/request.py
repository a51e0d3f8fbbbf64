"""The flags of train.py as a request, and the experiment and config changes that it specifies."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.analysis.tuned_learning_rates import LEARNING_RATE
from lab.commands import extend
from lab.core import plan, registry
from lab.core.experiment import Changes, Experiment
from training.config import ConfigError
from training.paths import parse_path


@dataclasses.dataclass(frozen=True)
class TrainRequest:
  """The flags of train.py; see `python train.py --help` for what each means.

  Attributes:
    command: the shell command that makes the same request.
    config_file: the scale file of --config, or None.
    changes: changes to config fields on the command line, by path.
    given: the flags that were passed, including those passed with their default value.
  """

  command: str
  config_file: str | None
  changes: Mapping[str, Any]
  given: frozenset[str]
  experiment: str | None
  status: bool
  list: bool
  variants: tuple[str, ...]
  seeds: tuple[str, ...]
  workdir: str
  workers: int
  tune: bool
  shared_learning_rate: float | None
  extend: bool
  init_from: str | None
  name: str
  sweep: str
  compare: tuple[str, ...]
  labels: tuple[str, ...]
  estimate: bool

  def directory(self) -> Path:
    """The work directory; raises ConfigError if the path is invalid."""
    return parse_path(self.workdir, '--workdir')

  def names_runs(self) -> bool:
    """Whether a flag selects runs, which are then those of one experiment."""
    selecting = {
      'experiment', 'name', 'sweep', 'variants', 'seeds', 'tune', 'extend', 'shared_learning_rate', 'init_from',
    }  # fmt: skip
    return bool(selecting & self.given or self.config_file or self.changes)


NOT_FLAGS = ('command', 'config_file', 'changes', 'given')
TRAIN_FLAGS = tuple(field.name for field in dataclasses.fields(TrainRequest) if field.name not in NOT_FLAGS)


def resolve(request: TrainRequest) -> tuple[Experiment, Changes]:
  """The experiment that a request names or defines, and its config changes for all variants.

  Raises:
    ConfigError: for an unknown experiment, or flags that contradict each other.
  """
  changes: dict[str, Any] = dict(request.changes)
  if request.init_from and changes.setdefault('run.init_from', request.init_from) != request.init_from:
    raise ConfigError('--config.run.init_from and --init_from differ: omit one of them')
  file = request.experiment if request.experiment and registry.is_path(request.experiment) else None
  if request.experiment and not file and (request.sweep or request.name):
    raise ConfigError('--sweep and --name define a separate experiment: omit --experiment')
  declared = registry.load_experiment(file) if file else None  # it may register parts that the other flags name
  # With --extend, a change of only the number of steps extends `block`.
  own_settings = extend.changed_settings(changes) if request.extend else changes
  if request.sweep:
    experiment = plan.sweep_experiment(request.sweep, changes, request.name)
  elif request.name or (not request.experiment and (request.config_file or own_settings)):
    name = request.name or (extend.find_custom_run(changes, request.directory()) if request.extend else '')
    experiment, changes = plan.custom_experiment(changes, name), {}
  else:
    experiment = declared or registry.find_experiment(request.experiment or 'block')
  if declared and experiment is not declared:
    experiment = dataclasses.replace(experiment, base=declared.base, config=declared.config, seeds=declared.seeds)
  return experiment, {**changes, **_shared_rate(request, experiment, changes)}


def _shared_rate(request: TrainRequest, experiment: Experiment, changes: Changes) -> Changes:
  """The change of --shared_learning_rate, after checking that no two flags set the learning rate."""
  rate = request.shared_learning_rate
  if rate is None and not request.tune:
    return {}
  flag = '--tune' if request.tune else '--shared_learning_rate'
  if rate is not None and request.tune:
    raise ConfigError(
      '--tune gives each variant its own learning rate, --shared_learning_rate the same to all: omit one of them'
    )
  if request.sweep or request.name or (not request.experiment and experiment.name not in registry.experiment_names()):
    raise ConfigError(f'{flag} needs an experiment file, as in --experiment=block')
  if LEARNING_RATE in changes:
    raise ConfigError(f'{flag} and --config.{LEARNING_RATE} both set the learning rate: omit one of them')
  if any(LEARNING_RATE in variant for variant in experiment.variants.values()):
    raise ConfigError(f'{flag}: the variants of {experiment.name} set {LEARNING_RATE} themselves')
  return {} if rate is None else {LEARNING_RATE: rate}
