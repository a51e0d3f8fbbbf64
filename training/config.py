"""Config: everything that determines a run, as frozen, validated dataclasses; changes are dicts by field path."""

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any

from model.config import ModelConfig
from model.field_checks import ConfigError, check_types
from training.config_sections import DataConfig, InspectConfig, MeshConfig, OptimizerConfig, RunConfig
from training.ideas import RECORDED, is_loaded
from training.known_names import RENAMED, check_names

IDEA, IDEA_FILE = 'model.idea', 'model.idea_file'  # only in configs with a part that is not built in
PARTS = ('connection', 'norm', 'feed_forward')  # the fields of the model that name a part


@dataclasses.dataclass(frozen=True)
class Config:
  """Everything that determines a run. `to_flat` and `from_flat` name fields by their paths, such as `model.num_layers`.

  Every task is next-token prediction, in which the targets are the inputs shifted by one: the model must be causal.
  """

  model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
  data: DataConfig = dataclasses.field(default_factory=DataConfig)
  optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
  run: RunConfig = dataclasses.field(default_factory=RunConfig)
  inspect: InspectConfig = dataclasses.field(default_factory=InspectConfig)
  mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)

  def __post_init__(self):
    if not self.model.causal:
      raise ConfigError(
        f'model.causal=False lets every position attend to the token it predicts, and data.task={self.data.task} is '
        'next-token prediction: set model.causal=True (model.apply alone also accepts models without a causal mask)'
      )
    optimizers = self.model.connection_class.optimizers if self.model.is_loaded else None
    if optimizers is not None and self.optimizer.name not in optimizers:
      raise ConfigError(
        f'optimizer.name={self.optimizer.name}: model.connection={self.model.connection} has learning rates by '
        f'parameter for {" and ".join(optimizers)} only'
      )
    if self.model.position == 'learned' and self.data.sequence_length > self.model.num_positions:
      raise ConfigError(
        f'data.sequence_length={self.data.sequence_length} is longer than the learned position table: '
        f'set model.num_positions={self.data.sequence_length}, or shorten the sequence to {self.model.num_positions}'
      )
    if self.run.batch_size % self.optimizer.accumulate:
      raise ConfigError(
        f'run.batch_size={self.run.batch_size} does not divide into optimizer.accumulate={self.optimizer.accumulate} '
        'equal parts'
      )
    if self.optimizer.warmup_steps >= self.run.steps and self.optimizer.schedule != 'constant':
      raise ConfigError(
        f'optimizer.warmup_steps={self.optimizer.warmup_steps} leaves no step for the {self.optimizer.schedule} '
        f'schedule: make it smaller than run.steps={self.run.steps}'
      )
    if self.optimizer.schedule == 'wsd':
      self._check_decay()

  def _check_decay(self):
    optimizer, steps = self.optimizer, self.run.steps
    decay = optimizer.decay_steps(steps)
    if not decay:
      raise ConfigError(
        f'optimizer.decay_fraction={optimizer.decay_fraction} of run.steps={steps} rounds to 0 steps: make it at least '
        f'{1 / steps:.3g}, or set optimizer.schedule=constant'
      )
    if optimizer.warmup_steps + decay > steps:
      raise ConfigError(
        f'optimizer.warmup_steps={optimizer.warmup_steps} and the {decay} steps of optimizer.decay_fraction='
        f'{optimizer.decay_fraction} are more than run.steps={steps}: make either smaller'
      )

  def to_flat(self) -> dict[str, Any]:
    """Every field by its path: {'model.num_layers': 12, ...}; IDEA and IDEA_FILE only if they are not empty."""
    nested = dataclasses.asdict(self)
    flat = {f'{name}.{key}': value for name, section in nested.items() for key, value in section.items()}
    return {path: value for path, value in flat.items() if value or path not in (IDEA, IDEA_FILE)}

  @classmethod
  def from_flat(cls, flat: Mapping[str, Any]) -> 'Config':
    """The inverse of to_flat; missing fields take their defaults.

    No file is executed: if a part of the model was registered by a file whose text is not loaded, the config can be
    compared and written again, but its model cannot be built; see `training.ideas.check_loaded`.

    Args:
      flat: values by path.

    Raises:
      ConfigError: for an unknown path (the message suggests the nearest known one) or an invalid value.
    """
    flat = with_present_names(flat)
    idea, file = (flat.pop(path, '') for path in (IDEA, IDEA_FILE))
    if idea and not RECORDED.fullmatch(str(idea)):
      raise ConfigError(f'{IDEA}={str(idea)[:100]!r}: must be the name of a file and its sha256, as it was recorded')
    check_names(flat, known_paths(), 'config key')
    by_section: dict[str, Any] = {}
    for name, section in sections().items():
      prefix = name + '.'
      values = {path.removeprefix(prefix): value for path, value in flat.items() if path.startswith(prefix)}
      unloaded = name == 'model' and idea and not is_loaded(idea)
      by_section[name] = _unloaded_model(values, idea, file) if unloaded else section(**values)
    return cls(**by_section)

  def replace(self, changes: Mapping[str, Any]) -> 'Config':
    """A copy with the fields in `changes`, by path, replaced."""
    check_names(changes, known_paths(), 'config key')
    return Config.from_flat({**self.to_flat(), **changes})


def _unloaded_model(values: Mapping[str, Any], idea: str, file: Any) -> ModelConfig:
  """The config of a model with parts of a file that is not loaded."""
  model = ModelConfig(**{field: value for field, value in values.items() if field not in PARTS})
  parts = {field: value for field, value in values.items() if field in PARTS}
  for field, value in {**parts, 'idea': idea, 'idea_file': file}.items():
    object.__setattr__(model, field, value)
  check_types(model, 'model')
  return model


def with_present_names(flat: Mapping[str, Any]) -> dict[str, Any]:
  """A flat config in which the fields that have been renamed since it was written have their present paths."""
  return {RENAMED.get(path, path): value for path, value in flat.items()}


def sections() -> dict[str, Any]:
  """The sections of Config: name -> dataclass."""
  return typing.get_type_hints(Config)


@functools.cache
def known_paths() -> tuple[str, ...]:
  """The path of every field of Config."""
  return tuple(Config().to_flat())
