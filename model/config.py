"""ModelConfig: every switch of the block, validated, with exact parameter and FLOP counts."""

import dataclasses
import math
import typing
import unicodedata
from typing import Any, Literal

NormPlacement = Literal['pre', 'post', 'sandwich', 'res_post', 'deepnorm', 'none']
Norm = Literal['rms', 'layer']
FeedForward = Literal['relu', 'gelu', 'silu', 'relu2', 'glu', 'swiglu', 'geglu', 'reglu', 'bilinear']
Position = Literal['rotary', 'learned', 'sinusoidal', 'none']
Init = Literal['fan_in', 'xavier', 'gpt2']
DType = Literal['float32', 'bfloat16']

GATED = frozenset({'glu', 'swiglu', 'geglu', 'reglu', 'bilinear'})
PLACEMENTS_WITH_FINAL_NORM = frozenset({'pre', 'sandwich', 'res_post'})


SMALLEST, LARGEST_FLOAT = 2.0**-126, 2.0**128 - 2.0**104  # of the normal numbers of float32; smaller ones become 0
NEARLY_1 = 1 - 2.0**-25  # what is above it rounds to 1 in float32
CONTROL = ('Cc', 'Zl', 'Zp')  # of Unicode: control characters, and what else ends a line
SHOWN = 120  # characters of a value, in a message


class ConfigError(ValueError):
  """What was asked for cannot be: one line for a person, saying what is wrong and what would be right."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The Transformer's switches. Instances are valid: making an impossible one raises ConfigError.

  Attributes:
    vocab_size: V, the number of token ids.
    num_layers: L, the number of blocks.
    d_model: D, the width of the residual stream.
    num_heads: H, the number of query heads.
    num_kv_heads: key and value heads, each shared by num_heads / num_kv_heads query heads; 0: as num_heads.
    head_dim: K, the width of a head; 0: d_model / num_heads.
    d_ff: F, the width of the feed-forward; 0: 4 d_model, times 2/3 (to the nearest integer) if gated.
    norm: `rms` or `layer`.
    norm_placement: where the norms sit; see model/block.py.
    feed_forward: the activation; see model/feed_forward.py.
    attention_residual: a in `a x + attention(...)`; 1 is the residual, 0 lets the branch replace the stream.
    feed_forward_residual: a in `a u + feed_forward(...)`.
    rezero: multiply each branch by a learned scalar that starts at 0 (Bachlechner et al. 2020).
    parallel: both branches read the same normed stream: `a x + attention(n) + feed_forward(n)`.
    qk_norm: norm queries and keys over head_dim before the product.
    causal: position t attends to positions up to t only; next-token training (training/config.py) needs it.
    position: how positions are told apart.
    num_positions: rows of the learned position table, the longest sequence it can serve.
    embedding_norm: norm the embedding before the first block (with `sandwich`: Peri-LN).
    tie_embeddings: the head is the embedding table, transposed; see model/transformer.py for its scale.
    use_bias: biases in every matrix product and, for `layer`, in the norms.
    dropout: share of branch outputs and attention weights dropped in training.
    init: distribution of the kernels; see model/initialisation.py.
    init_depth_scale: attention-output and last feed-forward kernels times 1/sqrt(2 L); `deepnorm` has its own.
    dtype: of the matrix products; parameters, stream, norms, softmax and logits are always float32. A GPU or TPU may
      round the factors of a float32 product: JAX_DEFAULT_MATMUL_PRECISION=float32 in the environment forbids it.
    remat: recompute each block in the backward pass instead of keeping its activations; saves most with unroll 1.
    unroll: blocks unrolled in each turn of the scan over layers (num_layers or more: all of them): a little faster,
      but compile time grows with it.
  """

  vocab_size: int = 256
  num_layers: int = 12
  d_model: int = 64
  num_heads: int = 4
  num_kv_heads: int = 0
  head_dim: int = 0
  d_ff: int = 0
  norm: Norm = 'rms'
  norm_placement: NormPlacement = 'pre'
  feed_forward: FeedForward = 'swiglu'
  attention_residual: float = 1.0
  feed_forward_residual: float = 1.0
  rezero: bool = False
  parallel: bool = False
  qk_norm: bool = False
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

  def __post_init__(self):
    check_types(self, 'model')
    for name in ('vocab_size', 'num_layers', 'd_model', 'num_heads', 'num_positions', 'unroll'):
      if getattr(self, name) < 1:
        raise ConfigError(f'model.{name}={getattr(self, name)}: must be at least 1')
    for name in ('num_kv_heads', 'head_dim', 'd_ff'):
      if getattr(self, name) < 0:
        raise ConfigError(f'model.{name}={getattr(self, name)}: must be positive, or 0 for the default')
    if not 0 <= self.dropout < NEARLY_1:
      raise ConfigError(f'model.dropout={self.dropout}: must be at least 0 and below 1')
    self._check_heads()
    self._check_wiring()

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
        'each key head serves the same number of query heads'
      )
    if self.position == 'rotary' and self.key_width % 2:
      raise ConfigError(
        f'model.position=rotary turns pairs of numbers, and a head has {self.key_width}: '
        'make model.head_dim even, or choose another model.position'
      )
    if self.position == 'sinusoidal' and self.d_model % 2:
      raise ConfigError(f'model.position=sinusoidal needs an even model.d_model, not {self.d_model}')

  def _check_wiring(self):
    residual_scales = (self.attention_residual, self.feed_forward_residual)
    if self.norm_placement == 'deepnorm' and residual_scales != (1.0, 1.0):
      raise ConfigError(
        f'model.norm_placement=deepnorm sets its own residual scale (2L)^(1/4): leave model.attention_residual='
        f'{self.attention_residual} and model.feed_forward_residual={self.feed_forward_residual} at 1'
      )
    if self.rezero and self.norm_placement not in ('pre', 'none'):
      raise ConfigError(
        f'model.rezero goes with model.norm_placement=pre or none, not {self.norm_placement}: '
        'a norm after the branch would undo, or divide by, a scale that starts at 0'
      )
    if self.parallel and self.norm_placement != 'pre':
      raise ConfigError(f'model.parallel goes with model.norm_placement=pre, not {self.norm_placement}')
    if self.parallel and residual_scales[0] != residual_scales[1]:
      raise ConfigError(
        'model.parallel writes to the stream once: model.attention_residual and '
        f'model.feed_forward_residual must be equal, not {residual_scales[0]} and {residual_scales[1]}'
      )

  @property
  def key_width(self) -> int:
    """K: the width of a head."""
    return self.head_dim or self.d_model // self.num_heads

  @property
  def kv_heads(self) -> int:
    """The number of key and value heads."""
    return self.num_kv_heads or self.num_heads

  @property
  def gated(self) -> bool:
    """Whether the feed-forward multiplies two projections (Shazeer 2020)."""
    return self.feed_forward in GATED

  @property
  def ff_width(self) -> int:
    """F: the width of the feed-forward, 2/3 of the ungated one if gated, so that parameters match."""
    if self.d_ff:
      return self.d_ff
    return round(4 * self.d_model * 2 / 3) if self.gated else 4 * self.d_model

  @property
  def has_final_norm(self) -> bool:
    """Whether a norm stands between the last block and the head."""
    return self.norm_placement in PLACEMENTS_WITH_FINAL_NORM

  @property
  def norms_per_block(self) -> int:
    """The number of norms over d_model in a block."""
    if self.norm_placement == 'none':
      return 0
    if self.parallel:
      return 1
    return 4 if self.norm_placement == 'sandwich' else 2

  @property
  def matmul_parameters(self) -> int:
    """N: parameters in matrix products; the head counts (also when tied), the embedding look-up does not."""
    query_width, kv_width = self.num_heads * self.key_width, self.kv_heads * self.key_width
    attention = self.d_model * (2 * query_width + 2 * kv_width)
    feed_forward = self.d_model * self.ff_width * (3 if self.gated else 2)
    return self.num_layers * (attention + feed_forward) + self.d_model * self.vocab_size

  @property
  def num_parameters(self) -> int:
    """The exact number of learned numbers, as in the tree that `model.init` returns."""
    norm_of_width_1 = 2 if self.norm == 'layer' and self.use_bias else 1
    norm = self.d_model * norm_of_width_1
    per_layer = self.norms_per_block * norm
    if self.qk_norm:
      per_layer += 2 * self.key_width * norm_of_width_1
    if self.rezero:
      per_layer += 2
    total = self.matmul_parameters + self.num_layers * per_layer
    if self.use_bias:
      attention = self.key_width * (self.num_heads + 2 * self.kv_heads) + self.d_model
      feed_forward = self.ff_width * (2 if self.gated else 1) + self.d_model
      total += self.num_layers * (attention + feed_forward) + self.vocab_size
    if not self.tie_embeddings:
      total += self.vocab_size * self.d_model
    if self.position == 'learned':
      total += self.num_positions * self.d_model
    return total + norm * (self.has_final_norm + self.embedding_norm)

  def flops_per_token(self, sequence_length: int) -> int:
    """FLOPs of one training step, a token: 6 N + 6 L T d under a causal mask, 6 N + 12 L T d without.

    N is `matmul_parameters`, d = num_heads * head_dim, T = sequence_length. A matrix product costs 2 FLOPs a
    parameter forward and 4 backward; attention reads half of the T positions under the mask. Norms, softmax
    and activations are left out, as is what remat computes again (Kaplan et al. 2020, section 2.1, plus the
    attention term of Chowdhery et al. 2022, appendix B, halved where the mask halves it).
    """
    attention = (6 if self.causal else 12) * self.num_layers * sequence_length * self.num_heads * self.key_width
    return 6 * self.matmul_parameters + attention


def _divisors(number: int) -> list[int]:
  """All divisors, in order."""
  small = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
  return sorted({*small, *(number // k for k in small)})


def check_types(config, section: str) -> None:
  """Checks each field of a dataclass against its annotation (int, float, bool, str or a Literal of names).

  Numbers must be ones that a program on a device has: an int32 (of a seed, a uint32), or a normal float32.

  Args:
    config: a frozen dataclass; an int given for a float becomes one.
    section: what to call it in a message, as in `model.num_layers`.

  Raises:
    ConfigError: naming the field, its value and what it takes.
  """
  for field in dataclasses.fields(config):
    value, kind = getattr(config, field.name), field.type
    if typing.get_origin(kind) is Literal:
      names = typing.get_args(kind)
      if not isinstance(value, str) or value not in names:
        raise ConfigError(f'{section}.{field.name}={_shown(value)}: must be one of {", ".join(names)}')
      continue
    if kind is float and type(value) is int:
      value = _as_float(value)
      object.__setattr__(config, field.name, value)
    if not isinstance(kind, type):
      continue
    if type(value) is not kind:
      raise ConfigError(f'{section}.{field.name}={_shown(value)}: must be {kind.__name__}, not {type(value).__name__}')
    reason = _out_of_range(value, is_seed=field.name.endswith('seed'))
    if reason:
      raise ConfigError(f'{section}.{field.name}={_shown(value)}: {reason}')


def _out_of_range(value: Any, is_seed: bool) -> str:
  """Why a value can be none of a field, whatever the field; empty if it can."""
  if isinstance(value, str):
    bad = next((sign for sign in value if unicodedata.category(sign) in CONTROL), None)
    return '' if bad is None else f'has the control character {bad!r}'
  if isinstance(value, float):
    if not math.isfinite(value):
      return 'must be a finite number'
    fits = value == 0 or SMALLEST <= abs(value) <= LARGEST_FLOAT
    return '' if fits else f'must be 0 or between {SMALLEST:.2g} and {LARGEST_FLOAT:.2g} in size, as float32 has it'
  bound = 2**32 if is_seed else 2**31
  return '' if value < bound else f'must be below {bound}'


def _as_float(value: int) -> float:
  try:
    return float(value)
  except OverflowError:
    return math.inf


def _shown(value) -> str:
  text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else f'{float(10) ** 30:g} or more'
  return text if len(text) <= SHOWN else f'{text[:SHOWN]}...'
