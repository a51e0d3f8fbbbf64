"""Config: all that decides a run, as frozen, validated dataclasses, and the dicts of changes made to it."""

import dataclasses
import difflib
import functools
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from model.config import ModelConfig
from model.field_checks import NEARLY_1, ConfigError, check_types

BYTES_END = 'end'  # data.end_token of a text of bytes
Task = Literal['kjv', 'files', 'copy', 'associative_recall']
Optimizer = Literal['adamw', 'sgd', 'lion', 'muon']
Schedule = Literal['cosine', 'linear', 'constant', 'wsd']


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """What is read.

  Attributes:
    task: `kjv` (the King James text), `files` (the user's own text), or a synthetic task.
    paths: for `files`: comma-separated paths or globs of text, .jsonl, .ndjson or .json, packed (gzip, zip, xz, bzip2)
      or not; see docs/your_own_text.md.
    text_field: for JSON: the field that holds the text of a record.
    tokenizer: path of a tokenizer.json; empty: bytes.
    sequence_length: T, positions in a sequence.
    seed: of the order of the sequences (and of a synthetic task's strings); follows the run's seed.
    end_token: the token that marks the end of each document (a file, a record of JSON, a book of the Bible) but the
      last: the name of one of the tokenizer's, or of bytes `end`, which is token 256. It stands for the newline that
      joins documents otherwise, one byte, so that bits per byte are of the same text with it and without. Empty: none.
    mask_documents: whether attention stays within a document; then every batch has `documents_BT`.
  """

  task: Task = 'kjv'
  paths: str = ''
  text_field: str = 'text'
  tokenizer: str = ''
  sequence_length: int = 64
  seed: int = 0
  end_token: str = ''
  mask_documents: bool = False

  def __post_init__(self):
    check_types(self, 'data')
    check_at_least(self, 'data', sequence_length=1, seed=0)
    if self.task == 'files' and not self.paths:
      raise ConfigError("data.task=files needs data.paths, as in --config.data.paths='books/*.txt'")
    if self.task != 'files' and self.paths:
      raise ConfigError(f'data.paths is read only with data.task=files, not {self.task}')
    if self.synthetic and self.tokenizer:
      raise ConfigError(f'data.tokenizer does nothing with data.task={self.task}, which makes its own tokens')
    if self.end_token and self.synthetic:
      raise ConfigError(f'data.end_token does nothing with data.task={self.task}, which has no documents')
    if self.end_token not in ('', BYTES_END) and not self.tokenizer:
      raise ConfigError(f'data.end_token={self.end_token!r}: of bytes the end token is called {BYTES_END!r}')
    if self.mask_documents and not self.end_token:
      raise ConfigError('data.mask_documents=True needs data.end_token, which marks where a document ends')

  @property
  def synthetic(self) -> bool:
    """Whether the sequences are generated, not read."""
    return self.task in ('copy', 'associative_recall')


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """How parameters move.

  Attributes:
    name: `adamw`, `sgd` (with momentum beta1), `lion` or `muon` (on hidden kernels; the rest by AdamW).
    learning_rate: the peak.
    schedule: what follows the warm-up: `cosine` or `linear` down to final_fraction, `constant`, or `wsd` (warm-up,
      stable, decay; Hu et al. 2024): constant up to the last steps, which decay to final_fraction as 1 - sqrt.
    warmup_steps: steps of linear rise from 0.
    final_fraction: share of the peak that the schedule falls to, which the step after the last would have.
    decay_fraction: share of all steps, the last ones, in which `wsd` decays.
    beta1, beta2, epsilon: of AdamW; Lion and Muon use beta1 (and Lion beta2), sgd beta1 as momentum.
    weight_decay: decoupled, on kernels alone: never on norms, gains, biases or embeddings.
    clip: largest global gradient norm; 0: no clipping.
    z_loss: c in c log^2 Z, added to the loss of each scored token in training alone; Z is the sum of its exponentiated
      logits, so that it stays near 1 (Chowdhery et al. 2022, section 5, with 1e-4); 0: none.
    ema: decay of an exponential moving average of the weights, as 0.999, which is then what is evaluated; without the
      initial values in it (bias-corrected, as the moments of Adam are; Kingma & Ba 2015, section 3); 0: none.
    accumulate: parts that a batch is taken in, one after the other, to spare memory; the update is that of the whole.
  """

  name: Optimizer = 'adamw'
  learning_rate: float = 4e-3
  schedule: Schedule = 'cosine'
  warmup_steps: int = 20
  final_fraction: float = 0.1
  decay_fraction: float = 0.2
  beta1: float = 0.9
  beta2: float = 0.95
  epsilon: float = 1e-8
  weight_decay: float = 0.1
  clip: float = 1.0
  z_loss: float = 0.0
  ema: float = 0.0
  accumulate: int = 1

  def __post_init__(self):
    check_types(self, 'optimizer')
    check_at_least(self, 'optimizer', warmup_steps=0, weight_decay=0, clip=0, final_fraction=0, z_loss=0, accumulate=1)
    for name in ('learning_rate', 'epsilon'):
      if getattr(self, name) <= 0:
        raise ConfigError(f'optimizer.{name}={getattr(self, name)}: must be above 0')
    for name in ('beta1', 'beta2', 'ema'):
      if not 0 <= getattr(self, name) < NEARLY_1:
        raise ConfigError(f'optimizer.{name}={getattr(self, name)}: must be at least 0 and below 1')
    if not 0 < self.decay_fraction <= 1:
      raise ConfigError(f'optimizer.decay_fraction={self.decay_fraction}: must be above 0 and at most 1')
    if self.schedule != 'wsd' and self.decay_fraction != OptimizerConfig.decay_fraction:
      raise ConfigError(
        f'optimizer.decay_fraction is read only with optimizer.schedule=wsd, not {self.schedule}: leave it out'
      )

  def decay_steps(self, steps: int) -> int:
    """The number of steps, the last ones of a run, in which the schedule `wsd` decays."""
    return round(self.decay_fraction * steps)


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """How long, how large, how often.

  Attributes:
    steps: optimizer steps.
    batch_size: B, sequences in a global batch.
    init_seed: of the initial values (and of dropout); follows the run's seed.
    init_from: a run's directory: start from its parameters, not from initial values.
    on_nonfinite: `stop`: the first step whose loss or gradient is not finite ends the run as `diverged`;
      `skip`: that update is dropped, and 10 in a row end the run. Either way the old parameters stay.
    log_every: steps between logged training metrics; 0: 30 times in a run.
    evaluations: how often the validation curve is measured, at equal intervals.
    evaluation_batches: batches of batch_size, evenly spread over the validation split, in the curve.
    final_evaluation_tokens: about how many tokens of each held-out split the result is measured on, at most; 0: all.
      Of text, whole blocks of 16 KiB that have so many bytes; evenly spread, the same for every variant and seed.
    checkpoint_every: steps between checkpoints; 0: 4 times in a run. The last step always has one.
    keep_checkpoints: how many are kept.
  """

  steps: int = 300
  batch_size: int = 16
  init_seed: int = 0
  init_from: str = ''
  on_nonfinite: Literal['stop', 'skip'] = 'stop'
  log_every: int = 0
  evaluations: int = 20
  evaluation_batches: int = 32
  final_evaluation_tokens: int = 524_288
  checkpoint_every: int = 0
  keep_checkpoints: int = 2

  def __post_init__(self):
    check_types(self, 'run')
    check_at_least(
      self, 'run', steps=1, batch_size=1, init_seed=0, log_every=0, evaluations=1, evaluation_batches=1,
      final_evaluation_tokens=0, checkpoint_every=0, keep_checkpoints=1,
    )  # fmt: skip

  @property
  def log_interval(self) -> int:
    """Steps between logged training metrics."""
    return self.log_every or max(1, self.steps // 30)

  @property
  def checkpoint_interval(self) -> int:
    """Steps between checkpoints."""
    return self.checkpoint_every or _ceil(self.steps, 4)

  def is_evaluated(self, step: int) -> bool:
    """Whether the validation curve is measured after this step: at equal intervals, the last step included."""
    count = min(self.evaluations, self.steps)
    return 0 < step <= self.steps and _ceil(self.steps * (step * count // self.steps), count) == step

  def is_saved(self, step: int) -> bool:
    """Whether a checkpoint of this step is saved, as of the last one it is always."""
    return 0 < step < self.steps and step % self.checkpoint_interval == 0


@dataclasses.dataclass(frozen=True)
class InspectConfig:
  """What is measured of the gradients while training.

  Attributes:
    level: `off`; `norms`: the two paths at every sublayer, and the norms of each parameter, its gradient and its
      update; or `full`: the paths at every position too, and what the forward pass did: what each branch adds to the
      stream, attention entropy and logits (by definition, beside the kernel in use), silent units, and how far the
      positions are from being all the same.
  """

  level: Literal['off', 'norms', 'full'] = 'norms'

  def __post_init__(self):
    check_types(self, 'inspect')


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """How many devices a run has, and how they share the work; it decides no number but in its last bits.

  Attributes:
    data: parts that a batch is split into, the parameters whole in each; -1: all the devices that are left.
    fsdp: parts that parameters, optimizer state and batch are split into, together; see training/mesh.py.
  """

  data: int = -1
  fsdp: int = 1

  def __post_init__(self):
    check_types(self, 'mesh')
    check_at_least(self, 'mesh', fsdp=1)
    if self.data < 1 and self.data != -1:
      raise ConfigError(f'mesh.data={self.data}: must be at least 1, or -1 for all the devices that are left')

  @property
  def named(self) -> int:
    """The devices that are asked for: as many as that, or with data=-1 at least as many."""
    return max(self.data, 1) * self.fsdp


@dataclasses.dataclass(frozen=True)
class Config:
  """All that decides a run. `to_flat` and `from_flat` name each field by its path, as `model.num_layers`.

  Every task is next-token prediction, in which the targets are the inputs shifted by one: the model must be causal.
  """

  model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
  data: DataConfig = dataclasses.field(default_factory=DataConfig)
  optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
  run: RunConfig = dataclasses.field(default_factory=RunConfig)
  inspect: InspectConfig = dataclasses.field(default_factory=InspectConfig)
  mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)

  def __post_init__(self):
    if not self.model.causal:  # every task is one: inputs and targets are the same tokens, shifted by one
      raise ConfigError(
        f'model.causal=False lets every position attend to the token it predicts, and data.task={self.data.task} is '
        'next-token prediction: set model.causal=True (model.apply alone also takes models without a causal mask)'
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
        f'optimizer.decay_fraction={optimizer.decay_fraction} of run.steps={steps} is no step: make it at least '
        f'{1 / steps:.3g}, or set optimizer.schedule=constant'
      )
    if optimizer.warmup_steps + decay > steps:
      raise ConfigError(
        f'optimizer.warmup_steps={optimizer.warmup_steps} and the {decay} steps of optimizer.decay_fraction='
        f'{optimizer.decay_fraction} are more than run.steps={steps}: make either smaller'
      )

  def to_flat(self) -> dict[str, Any]:
    """Every field by its path: {'model.num_layers': 12, ...}."""
    nested = dataclasses.asdict(self)
    return {f'{name}.{key}': value for name, section in nested.items() for key, value in section.items()}

  @classmethod
  def from_flat(cls, flat: Mapping[str, Any]) -> 'Config':
    """The inverse of to_flat; fields not named keep their defaults.

    Raises:
      ConfigError: for an unknown path, with the nearest right one, or an impossible value.
    """
    check_names(flat, known_paths(), 'config key')
    made = {}
    for name, section in sections().items():
      prefix = name + '.'
      values = {path.removeprefix(prefix): value for path, value in flat.items() if path.startswith(prefix)}
      made[name] = section(**values)
    return cls(**made)

  def replace(self, changes: Mapping[str, Any]) -> 'Config':
    """A Config with the fields in `changes` (by path) set anew."""
    check_names(changes, known_paths(), 'config key')
    return Config.from_flat({**self.to_flat(), **changes})


def _ceil(numerator: int, denominator: int) -> int:
  """The quotient, rounded up; exact for integers of any size."""
  return -(-numerator // denominator)


def sections() -> dict[str, Any]:
  """The sections of Config: name -> dataclass."""
  return typing.get_type_hints(Config)


@functools.cache
def known_paths() -> tuple[str, ...]:
  """The path of every field of Config."""
  return tuple(Config().to_flat())


def check_names(names: Iterable[str], known: Iterable[str], kind: str) -> None:
  """Raises ConfigError for the first name that is not known, naming the nearest one that is."""
  known = list(known)
  for name in names:
    if name not in known:
      raise ConfigError(f'unknown {kind} {name!r}{nearest_name(name, known)}')


def nearest_name(name: str, known: Iterable[str]) -> str:
  """A hint that ends a message: `: did you mean 'norm_placement'?`, or the names there are."""
  known = sorted(known)
  near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
  if not near:  # the last part alone may be right: num_layers for model.num_layers
    near = [path for path in known if path.rpartition('.')[2] == name.rpartition('.')[2]][:1]
  if near:
    return f': did you mean {near[0]!r}?'
  return f': there are {", ".join(known)}' if 0 < len(known) < 30 else ''


def check_at_least(config, section: str, **bounds: float) -> None:
  """Raises ConfigError for the first field that is below its bound."""
  for name, bound in bounds.items():
    if getattr(config, name) < bound:
      raise ConfigError(f'{section}.{name}={getattr(config, name)}: must be at least {bound}')
