"""What a user asks train.py for, and the experiment and the changes of settings that this means."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

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
    command: makes the same request again, as typed in a shell.
    config_file: the scale file of --config, or None.
    changes: of config fields, by path, as given on the command line.
    given: the flags that were given, also with their default.
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

  FLAGS: ClassVar[tuple[str, ...]] = (
    'experiment', 'status', 'list', 'variants', 'seeds', 'workdir', 'workers', 'tune', 'shared_learning_rate', 'extend',
    'init_from', 'name', 'sweep', 'compare', 'labels', 'estimate',
  )  # fmt: skip

  def directory(self) -> Path:
    """The work directory; raises ConfigError if it cannot be one."""
    return parse_path(self.workdir, '--workdir')

  def names_runs(self) -> bool:
    """Whether a flag says which runs are meant, so that they are those of one experiment."""
    which = {
      'experiment', 'name', 'sweep', 'variants', 'seeds', 'tune', 'extend', 'shared_learning_rate', 'init_from',
    }  # fmt: skip
    return bool(which & self.given or self.config_file or self.changes)


def resolve(request: TrainRequest) -> tuple[Experiment, Changes]:
  """The experiment that the request names or makes, and the changes it makes to all of its variants.

  Raises:
    ConfigError: for an unknown experiment, or two flags that contradict one another.
  """
  changes: dict[str, Any] = dict(request.changes)
  if request.init_from and changes.setdefault('run.init_from', request.init_from) != request.init_from:
    raise ConfigError('--config.run.init_from and --init_from say different things: leave one out')
  if request.experiment and (request.sweep or request.name):
    raise ConfigError('--sweep and --name make an experiment of their own: leave --experiment out')
  own_settings = (
    extend.changed_settings(changes) if request.extend else changes
  )  # to extend `block`, steps alone are given
  if request.sweep:
    experiment = plan.sweep_experiment(request.sweep, changes, request.name)
  elif not request.experiment and (request.name or request.config_file or own_settings):
    name = request.name or (extend.find_custom_run(changes, request.directory()) if request.extend else '')
    experiment, changes = plan.custom_experiment(changes, name), {}
  else:
    experiment = registry.find_experiment(request.experiment or 'block')
  return experiment, {**changes, **_shared_rate(request, experiment, changes)}


def _shared_rate(request: TrainRequest, experiment: Experiment, changes: Changes) -> Changes:
  """What --shared_learning_rate changes, once it is clear that no two flags set the learning rate."""
  rate = request.shared_learning_rate
  if rate is None and not request.tune:
    return {}
  flag = '--tune' if request.tune else '--shared_learning_rate'
  if rate is not None and request.tune:
    raise ConfigError('--tune gives each variant its own rate, --shared_learning_rate all the same: leave one out')
  if experiment.name not in registry.experiment_names():
    raise ConfigError(f'{flag} is for the variants of an experiment: give one alone, as in --experiment=block')
  if LEARNING_RATE in changes:
    raise ConfigError(f'{flag} and --config.{LEARNING_RATE} both set the learning rate: leave one out')
  if any(LEARNING_RATE in variant for variant in experiment.variants.values()):
    raise ConfigError(f'{flag}: the variants of {experiment.name} set {LEARNING_RATE} themselves')
  return {} if rate is None else {LEARNING_RATE: rate}
