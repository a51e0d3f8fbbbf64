"""The sections of a Config, except the model's: data, optimizer, run, inspect and mesh."""

import dataclasses
from typing import Literal

from model.field_checks import NEARLY_1, ConfigError, check_types

BYTES_END = 'end'  # the data.end_token of byte-level text
TaskName = Literal['kjv', 'files', 'copy', 'associative_recall']
OptimizerName = Literal['adamw', 'sgd', 'lion', 'muon']
ScheduleName = Literal['cosine', 'linear', 'constant', 'wsd']


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """The data, and how it is cut into sequences.

  Attributes:
    task: `kjv` (the King James Bible), `files` (the user's own text), or a synthetic task.
    paths: for `files`: comma-separated paths or globs of text, .jsonl, .ndjson or .json files, optionally compressed
      (gzip, zip, xz, bzip2); see docs/your_own_text.md.
    text_field: for JSON: the field of a record that holds the text.
    tokenizer: path of a tokenizer.json; empty: each byte is a token.
    sequence_length: T, positions in a sequence.
    seed: seed for the order of the sequences (and for the strings of a synthetic task); follows the run's seed.
    end_token: the token at the end of each document (a file, a JSON record, a book of the Bible) except the last: the
      name of a token of the tokenizer or, for bytes, `end`, which is token 256. It replaces the newline that otherwise
      joins documents and counts as that one byte, so that bits per byte are comparable either way. Empty: none.
    mask_documents: whether attention stays within a document; if so, every batch has `documents_BT`.
  """

  task: TaskName = 'kjv'
  paths: str = ''
  text_field: str = 'text'
  tokenizer: str = ''
  sequence_length: int = 64
  seed: int = 0
  end_token: str = ''
  mask_documents: bool = False

  def __post_init__(self):
    check_types(self, 'data')
    _check_at_least(self, 'data', sequence_length=1, seed=0)
    if self.task == 'files' and not self.paths:
      raise ConfigError("data.task=files needs data.paths, as in --config.data.paths='books/*.txt'")
    if self.task != 'files' and self.paths:
      raise ConfigError(f'data.paths is used only with data.task=files, not {self.task}')
    if self.synthetic and self.tokenizer:
      raise ConfigError(f'data.tokenizer has no effect with data.task={self.task}, which generates its tokens')
    if self.end_token and self.synthetic:
      raise ConfigError(f'data.end_token has no effect with data.task={self.task}, which has no documents')
    if self.end_token not in ('', BYTES_END) and not self.tokenizer:
      raise ConfigError(f'data.end_token={self.end_token!r}: without a tokenizer, the end token must be {BYTES_END!r}')
    if self.mask_documents and not self.end_token:
      raise ConfigError('data.mask_documents=True needs data.end_token, which marks where a document ends')

  @property
  def synthetic(self) -> bool:
    """Whether the sequences are generated rather than read."""
    return self.task in ('copy', 'associative_recall')


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """The optimizer and its learning rate schedule.

  Attributes:
    name: `adamw`, `sgd` (with momentum beta1), `lion` or `muon` (on hidden kernels; AdamW on the other parameters).
    learning_rate: the peak learning rate, reached after the warm-up.
    schedule: after the warm-up: `cosine` or `linear` decay to final_fraction, `constant`, or `wsd` (warm-up, stable,
      decay; Hu et al. 2024): constant until the last steps, which decay to final_fraction as 1 - sqrt.
    warmup_steps: steps of linear increase from 0.
    final_fraction: the fraction of the peak to which the schedule decays; it would be reached one step after the last.
    decay_fraction: the fraction of all steps, at the end of the run, over which `wsd` decays.
    beta1, beta2, epsilon: parameters of AdamW; Lion uses beta1 and beta2, Muon beta1, sgd beta1 as its momentum.
    weight_decay: decoupled weight decay, on kernels only: never on norms, gains, biases or embeddings.
    clip: maximum global gradient norm; 0: no clipping.
    z_loss: coefficient of log^2 Z, which is added to the training loss of each scored token; Z is the sum of the
      exponentiated logits, which the term keeps near 1 (Chowdhery et al. 2022, section 5, use 1e-4); 0: none.
    ema: decay of an exponential moving average of the weights, such as 0.999; the average is evaluated. It is
      bias-corrected, without the initial values, like Adam's moments (Kingma & Ba 2015, section 3); 0: none.
    accumulate: number of microbatches that a batch is split into to save memory (gradient accumulation); the update is
      the same.
  """

  name: OptimizerName = 'adamw'
  learning_rate: float = 4e-3
  schedule: ScheduleName = 'cosine'
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
    _check_at_least(self, 'optimizer', warmup_steps=0, weight_decay=0, clip=0, final_fraction=0, z_loss=0, accumulate=1)
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
        f'optimizer.decay_fraction is used only with optimizer.schedule=wsd, not {self.schedule}: omit it'
      )

  def decay_steps(self, steps: int) -> int:
    """The number of steps at the end of a run in which the schedule `wsd` decays."""
    return round(self.decay_fraction * steps)


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """The length of a run, its batches, and how often it logs, evaluates and saves.

  Attributes:
    steps: optimizer steps.
    batch_size: B, sequences in a global batch.
    init_seed: seed of the initial parameters (and of dropout); follows the run's seed.
    init_from: directory of a run whose parameters this run starts from, instead of newly initialised ones.
    on_nonfinite: `stop`: the first step whose loss or gradient is not finite ends the run as `diverged`;
      `skip`: such an update is dropped, and 10 in a row end the run. The parameters stay unchanged either way.
    log_every: steps between logged training metrics; 0: about 30 times in a run.
    evaluations: number of points of the validation curve, at equal intervals.
    evaluation_batches: number of batches of batch_size in each point of the validation curve, evenly spread over the
      validation split.
    final_evaluation_tokens: maximum number of tokens of each held-out split that the result is measured on; 0: all. For
      text, whole blocks of 16 KiB with about that many bytes; evenly spread, the same for every variant and seed.
    checkpoint_every: steps between checkpoints; 0: 4 times in a run. The last step is always saved.
    keep_checkpoints: number of the newest checkpoints to keep.
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
    _check_at_least(
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
    """Whether the validation curve has a point after this step: at equal intervals, including the last step."""
    count = min(self.evaluations, self.steps)
    return 0 < step <= self.steps and _ceil(self.steps * (step * count // self.steps), count) == step

  def is_saved(self, step: int) -> bool:
    """Whether a checkpoint is due after this step; the last step's is saved separately, at any interval."""
    return 0 < step < self.steps and step % self.checkpoint_interval == 0


@dataclasses.dataclass(frozen=True)
class InspectConfig:
  """Which gradient and forward-pass statistics to measure during training.

  Attributes:
    level: `off`; `norms`: the skip and branch gradients at every sublayer, and the norms of each parameter, its
      gradient and its update; or `full`: also the stream gradient at every position and the statistics of the forward
      pass: what each branch adds to the stream, attention entropy and logits (computed by the definition, separately
      from the kernel in use), dead units, and how far the positions are from all being equal.
  """

  level: Literal['off', 'norms', 'full'] = 'norms'

  def __post_init__(self):
    check_types(self, 'inspect')


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """The devices of a run and how they share the work; results differ only in the last bits.

  Attributes:
    data: number of parts that a batch is split into, each with a copy of the parameters; -1: all remaining devices.
    fsdp: number of parts that the parameters, the optimizer state and the batch are all split into;
      see training/mesh.py.
  """

  data: int = -1
  fsdp: int = 1

  def __post_init__(self):
    check_types(self, 'mesh')
    _check_at_least(self, 'mesh', fsdp=1)
    if self.data < 1 and self.data != -1:
      raise ConfigError(f'mesh.data={self.data}: must be at least 1, or -1 for all remaining devices')

  @property
  def required_devices(self) -> int:
    """The number of devices required: exactly this many, or with data=-1 at least this many."""
    return max(self.data, 1) * self.fsdp


def _ceil(numerator: int, denominator: int) -> int:
  """The quotient, rounded up; exact for integers of any size."""
  return -(-numerator // denominator)


def _check_at_least(config, section: str, **bounds: float) -> None:
  """Raises ConfigError for the first field that is below its bound."""
  for name, bound in bounds.items():
    if getattr(config, name) < bound:
      raise ConfigError(f'{section}.{name}={getattr(config, name)}: must be at least {bound}')
