"""ModelConfig: all options of the Transformer, validated."""

import dataclasses
import math
from typing import Any, Literal

from model.activations import ACTIVATIONS
from model.connections import CONNECTIONS, Connection
from model.field_checks import NEARLY_1, ConfigError, check_types
from model.norm import NORMS
from model.registry import Registry, format_setting, make_options, parse_setting

Position = Literal['rotary', 'learned', 'sinusoidal', 'none']
Init = Literal['fan_in', 'xavier', 'gpt2']
DType = Literal['float32', 'bfloat16']


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The options of the Transformer. The constructor raises ConfigError for invalid values and combinations.

  Attributes:
    vocab_size: V, the number of token ids.
    num_layers: L, the number of blocks.
    d_model: D, the width of the residual stream.
    num_heads: H, the number of query heads.
    num_kv_heads: key and value heads, each shared by num_heads / num_kv_heads query heads; 0: num_heads.
    head_dim: K, the width of a head; 0: d_model / num_heads.
    d_ff: F, the width of the feed-forward; 0: 4 d_model, times 2/3 (to the nearest integer) if gated.
    norm: the kind of every norm, by name; see model/norm.py.
    connection: how a sublayer reads from the residual state and writes to it: a norm placement, or another residual
      design, with its options as in `hyper_connections:streams=2`; see model/connections/.
    feed_forward: the activation, by name; see model/activations.py.
    attention_residual: residual scale a in `a x + attention(...)`; at 0 the branch replaces the stream.
    feed_forward_residual: residual scale a in `a u + feed_forward(...)`.
    rezero: multiply each branch by a learned scalar that starts at 0 (Bachlechner et al. 2020).
    parallel: both branches read the same normed stream: `a x + attention(n) + feed_forward(n)`.
    qk_norm: normalise queries and keys over head_dim before their product.
    attention_gate: multiply the heads by sigmoid(x W), x the input of the branch, before the output projection (Qiu et
      al. 2025).
    attention_sink: a learned logit for each head next to those of the keys, with no value: a query can attend to
      nothing (Miller 2023; gpt-oss). It starts at 0; at minus infinity there is no sink.
    causal: position t attends only to positions up to t; required for next-token training (training/config.py).
    position: the position encoding.
    num_positions: rows of the learned position table; longer sequences raise an error.
    embedding_norm: apply a norm to the embedding before the first block (with `sandwich`, this is Peri-LN).
    tie_embeddings: the head is the embedding table, transposed; see model/embedding.py for its scale.
    use_bias: biases in every linear layer and, for `layer`, in the norms; `dyt` and `derf` always have theirs.
    dropout: dropout rate of branch outputs and attention weights in training.
    init: distribution of the kernels; see model/initialisation.py.
    init_depth_scale: scale the initial output kernel of each branch by 1/sqrt(2 L); `deepnorm` ignores this and has its
      own scale.
    dtype: dtype of matrix products; parameters, stream, norms, softmax and logits are always float32. GPUs and
      TPUs may compute float32 products at lower precision (such as TF32) unless the environment variable
      JAX_DEFAULT_MATMUL_PRECISION is float32.
    remat: recompute each block in the backward pass instead of storing its activations; saves the most
      memory with unroll=1.
    unroll: blocks per iteration of the scan over layers; num_layers or more unrolls the scan fully. More blocks per
      iteration run slightly faster, but take longer to compile.
    idea: the name and the sha256 of the file that registered a part of this model which is not built in, as in
      `my_gate.py sha256 1f2e...`; empty if all are. Not an argument.
    idea_file: the absolute path of that file. Not an argument.
  """

  vocab_size: int = 256
  num_layers: int = 12
  d_model: int = 64
  num_heads: int = 4
  num_kv_heads: int = 0
  head_dim: int = 0
  d_ff: int = 0
  norm: str = 'rms'
  connection: str = 'pre'
  feed_forward: str = 'swiglu'
  attention_residual: float = 1.0
  feed_forward_residual: float = 1.0
  rezero: bool = False
  parallel: bool = False
  qk_norm: bool = False
  attention_gate: bool = False
  attention_sink: bool = False
  causal: bool = True
  position: Position = 'rotary'
  num_positions: int = 64
  embedding_norm: bool = False
  tie_embeddings: bool = False
  use_bias: bool = False
  dropout: float = 0.0
  init: Init = 'fan_in'
  init_depth_scale: bool = True
  dtype: DType = 'float32'
  remat: bool = False
  unroll: int = 1
  idea: str = dataclasses.field(default='', init=False)
  idea_file: str = dataclasses.field(default='', init=False, compare=False)

  def __post_init__(self):
    check_types(self, 'model')
    NORMS.find(self.norm, 'model.norm')
    ACTIVATIONS.find(self.feed_forward, 'model.feed_forward')
    for name in ('vocab_size', 'num_layers', 'd_model', 'num_heads', 'num_positions', 'unroll'):
      if getattr(self, name) < 1:
        raise ConfigError(f'model.{name}={getattr(self, name)}: must be at least 1')
    for name in ('num_kv_heads', 'head_dim', 'd_ff'):
      if getattr(self, name) < 0:
        raise ConfigError(f'model.{name}={getattr(self, name)}: must be positive, or 0 for the default')
    if not 0 <= self.dropout < NEARLY_1:
      raise ConfigError(f'model.dropout={self.dropout}: must be at least 0 and below 1')
    self._check_heads()
    self._check_connection()

  def _check_heads(self):
    if self.head_dim == 0 and self.d_model % self.num_heads:
      nearest = min(_divisors(self.d_model), key=lambda h: abs(h - self.num_heads))
      raise ConfigError(
        f'model.num_heads={self.num_heads} does not divide model.d_model={self.d_model}: '
        f'{nearest} does, or set model.head_dim'
      )
    if self.num_kv_heads and self.num_heads % self.num_kv_heads:
      raise ConfigError(
        f'model.num_kv_heads={self.num_kv_heads} does not divide model.num_heads={self.num_heads}: '
        'every key-value head is shared by the same number of query heads'
      )
    if self.position == 'rotary' and self.key_width % 2:
      raise ConfigError(
        f'model.position=rotary rotates pairs of coordinates, and the head width is {self.key_width}: '
        'make model.head_dim even, or choose another model.position'
      )
    if self.position == 'sinusoidal' and self.d_model % 2:
      raise ConfigError(f'model.position=sinusoidal needs an even model.d_model, not {self.d_model}')

  def _check_connection(self):
    name, given = parse_setting(self.connection, 'model.connection')
    part = CONNECTIONS.find(name, 'model.connection')
    options = make_options(part.Options, given, f'model.connection={name}')
    object.__setattr__(self, 'connection', format_setting(name, options))
    idea, file = self._origin()
    object.__setattr__(self, 'idea', idea)
    object.__setattr__(self, 'idea_file', file)
    part.check(self)

  def _parts(self) -> list[tuple[Registry[Any], str]]:
    """The name of each part of the model that an experiment file may register, with the registry of its kind."""
    connection = parse_setting(self.connection, 'model.connection')[0]
    return [(CONNECTIONS, connection), (NORMS, self.norm), (ACTIVATIONS, self.feed_forward)]

  def _origin(self) -> tuple[str, str]:
    """The values of `idea` and `idea_file`, by the parts that are registered now."""
    files = {
      file: registry.checksum(name)
      for registry, name in self._parts()
      if name in registry and (file := registry.origin(name))
    }
    if len(files) > 1:
      raise ConfigError(f'{" and ".join(map(str, files))} each register a part of one model: put both into one file')
    return next(((f'{file.name} sha256 {checksum}', str(file)) for file, checksum in files.items()), ('', ''))

  @property
  def key_width(self) -> int:
    """K: the width of a head."""
    return self.head_dim or self.d_model // self.num_heads

  @property
  def kv_heads(self) -> int:
    """The number of key and value heads."""
    return self.num_kv_heads or self.num_heads

  @property
  def head_norms(self) -> tuple[str, ...]:
    """Which of `query`, `key` and `value` are normed over head_dim: by `qk_norm`, and by the connection."""
    normed = {*(('query', 'key') if self.qk_norm else ()), *self.connection_class.head_norms}
    return tuple(name for name in ('query', 'key', 'value') if name in normed)

  @property
  def gated(self) -> bool:
    """Whether the feed-forward multiplies two projections (Shazeer 2020)."""
    self._check_loaded()
    return ACTIVATIONS[self.feed_forward].gated

  @property
  def ff_width(self) -> int:
    """F: the width of the feed-forward, 2/3 of the ungated width if gated, so that parameter counts match."""
    if self.d_ff:
      return self.d_ff
    return round(4 * self.d_model * 2 / 3) if self.gated else 4 * self.d_model

  @property
  def own_parts(self) -> list[str]:
    """The parts that are not built in: ['connection my_gate', ...]."""
    return [
      f'{registry.kind} {name}'
      for registry, name in self._parts()
      if name not in registry or registry.origin(name) is not None
    ]

  @property
  def is_loaded(self) -> bool:
    """Whether the parts of the model are the registered ones, and not those of another text of the file `idea`."""
    return not self.idea or self.idea == self._origin()[0]

  @property
  def connection_class(self) -> type[Connection]:
    """The class of the connection around every sublayer."""
    self._check_loaded()
    return CONNECTIONS[parse_setting(self.connection, 'model.connection')[0]]

  def _check_loaded(self) -> None:
    if not self.is_loaded:
      raise ConfigError(f'{self.idea_file} is not loaded with the text that this config was created with')

  @property
  def stochastic(self) -> bool:
    """Whether the model draws random numbers in training."""
    return self.dropout > 0 or self.connection_class.stochastic(self)

  @property
  def connection_options(self) -> Any:
    """The options of the connection, of the type `connection_class.Options`."""
    name, given = parse_setting(self.connection, 'model.connection')
    return make_options(self.connection_class.Options, given, f'model.connection={name}')


def _divisors(number: int) -> list[int]:
  """All divisors, in order."""
  small = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
  return sorted({*small, *(number // k for k in small)})
