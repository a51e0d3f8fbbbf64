"""What a connection is: how a sublayer reads from the residual state, and writes to it."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
from flax import nnx

from model.distributions import Distribution
from model.field_checks import ConfigError
from model.norm import make_norm
from model.registry import Registry, check_options_class

if TYPE_CHECKING:
  from model.config import ModelConfig

State = Any  # a pytree of float32 arrays (B, T, ...); for most connections the stream x_BTD alone
Sublayer = Literal['attention', 'feed_forward']


@dataclasses.dataclass(frozen=True)
class Site:
  """The place of a sublayer in the stack.

  Attributes:
    index: of the sublayer, counted from 1 over attention and feed-forward; an int32 array, since one program runs
      every layer.
    total: the number of sublayers, 2 L.
    key: a `jax.random` key in training, of this sublayer; None in evaluation, and while the model is constructed.
    fixed: what `Connection.fixed` returned for this group of blocks; None by default.
  """

  index: jax.Array
  total: int
  key: jax.Array | None = None
  fixed: Any = None

  @property
  def block(self) -> jax.Array:
    """The index of the block, counted from 1."""
    return (self.index + 1) // 2


class OptimizerFactors(NamedTuple):
  """What multiplies the optimizer's settings for one parameter; weight decay only where the parameter decays."""

  learning_rate: float = 1.0
  epsilon: float = 1.0
  weight_decay: float = 1.0


class Ends(nnx.Module):
  """The ends of the stack: the state before the first block, what the head reads; and what is between its groups."""

  def __init__(self, config: 'ModelConfig'):
    self.config = config

  def open(self, x_BTD: jax.Array) -> State:
    """The state before the first block, from the embedding."""
    return x_BTD

  def between(self, state: State, blocks: int) -> State:
    """The state before the next group of `Connection.groups`, after this many blocks; its structure may change here."""
    return state

  def close(self, state: State) -> jax.Array:
    """What the head reads, x_BTD, before the final norm, if there is one."""
    return state


class Connection(nnx.Module):
  """How a sublayer with the branch F reads from the residual state and writes to it.

    skip, branch = fork(state);  state = write(skip, term(F(read(branch))))

  What `write` computes from the state itself, such as a gate, belongs to the skip path; what `read` computes belongs to
  the branch. A subclass defines `read` and `write`. Its constructor makes its parameters, whose values there are their
  initial values, and whose names are prefixed by the sublayer's: `norm` becomes `attention_norm`.

  Attributes:
    final_norm: whether the stack needs a norm before the head, because the last sublayer does not end in one.
    supports: which of `residual_scale` (model.attention_residual and model.feed_forward_residual), `rezero` and
      `parallel` it can be combined with.
    ends: the ends of the stack.
    head_norms: which of the heads of attention, `query`, `key` and `value`, are normed over head_dim; with
      `model.qk_norm` queries and keys always are.
    optimizers: the values of optimizer.name that its `optimizer_factors` are for; None: all of them.
    Options: the options, a frozen dataclass; set as in `model.connection=hyper_connections:streams=2`.
  """

  final_norm: ClassVar[bool] = True
  supports: ClassVar[tuple[str, ...]] = ()
  ends: ClassVar[type[Ends]] = Ends
  head_norms: ClassVar[tuple[str, ...]] = ()
  optimizers: ClassVar[tuple[str, ...] | None] = None

  @dataclasses.dataclass(frozen=True)
  class Options:
    """No options."""

  def __init__(self, config: 'ModelConfig', sublayer: Sublayer, site: Site):
    """Makes the parameters of one sublayer.

    Args:
      config: the model config; `config.connection_options` has the options.
      sublayer: whether it is around attention or feed-forward.
      site: the place in the stack.
    """
    self.config, self.sublayer = config, sublayer

  def read(self, state: State, site: Site) -> jax.Array:
    """The input of the branch, x_BTD, float32."""
    raise NotImplementedError

  def term(self, y_BTD: jax.Array, site: Site) -> jax.Array:
    """What is written of the branch's output, y_BTD in float32: for a norm after the branch, or a learned scale."""
    return y_BTD

  def write(self, state: State, y_BTD: jax.Array, site: Site) -> State:
    """The state after the sublayer, of the same structure, from the state before it and the term."""
    raise NotImplementedError

  def weights(self, state: State, site: Site) -> dict[str, jax.Array]:
    """The weights with which the sublayer connects the arrays of this state, means over the tokens, for a figure.

    Returns:
      `reading` (sources,), of each array in the input of the branch; `mixing` (n, n), of the old arrays (columns) in
      the new ones (rows); `writing` (n,), of the term in the new arrays: those that the design has. Empty if there is
      one array. The shapes are the same at every sublayer; a source that does not exist yet has weight 0.
    """
    return {}

  def run(self, skip: State, branch: State, F: Callable[..., jax.Array], site: Site) -> tuple[jax.Array, State]:
    """Runs the sublayer; a design that reaches into attention overrides it.

    Args:
      skip: the state on the skip path.
      branch: the state that enters the branch.
      F: the branch, from its input to its output, x_BTD -> y_BTD, float32. That of attention also takes a function
        on its values, `F(x_BTD, values=lambda v_BSHK: ...)`; see model/attention.py. Both take a
        `jax.tree_util.Partial` on what they computed and its linear part, `F(x_BTD, mix=...)`: attention on the heads
        out_BTHK and the values v_BSHK, the feed-forward on the hidden activations h_BTF and up(x)_BTF.
      site: the place in the stack.

    Returns:
      The term, y_BTD, and the state after the sublayer.
    """
    y_BTD = self.term(F(self.read(branch, site)), site)
    return y_BTD, self.write(skip, y_BTD, site)

  @staticmethod
  def stream(state: State) -> jax.Array:
    """The stream x_BTD that the forward statistics describe; by default the first array of the state."""
    return jax.tree.leaves(state)[0]

  @classmethod
  def check(cls, config: 'ModelConfig') -> None:
    """Raises ConfigError for a config that the connection cannot be combined with."""
    scales = (config.attention_residual, config.feed_forward_residual)
    if 'residual_scale' not in cls.supports and scales != (1.0, 1.0):
      raise ConfigError(
        f'model.connection={config.connection} has no residual scale that can be set: model.attention_residual='
        f'{scales[0]} and model.feed_forward_residual={scales[1]} must both be 1'
      )
    if config.rezero and 'rezero' not in cls.supports:
      raise ConfigError(
        f'model.rezero requires model.connection={_supporting("rezero")}, not {config.connection}: '
        'others have a norm after the branch, which would divide by a scale that starts at 0, or scales of their own'
      )
    if config.parallel and 'parallel' not in cls.supports:
      raise ConfigError(f'model.parallel requires model.connection={_supporting("parallel")}, not {config.connection}')
    if config.parallel and scales[0] != scales[1]:
      raise ConfigError(
        'model.parallel adds both branches to one skip path: model.attention_residual and '
        f'model.feed_forward_residual must be equal, not {scales[0]} and {scales[1]}'
      )

  @classmethod
  def stochastic(cls, config: 'ModelConfig') -> bool:
    """Whether it draws random numbers in training, from `site.key`."""
    return False

  @classmethod
  def has_final_norm(cls, config: 'ModelConfig') -> bool:
    """Whether the stack needs a norm before the head; for a design in which this depends on its options."""
    return cls.final_norm

  @classmethod
  def groups(cls, config: 'ModelConfig') -> tuple[int, ...]:
    """The numbers of consecutive blocks that run as one scan each; their sum is num_layers."""
    return (config.num_layers,)

  @classmethod
  def fixed(cls, config: 'ModelConfig', state: State) -> Any:
    """What is computed once per group of blocks from the state before it, without a gradient, for `Site.fixed`.

    The backward pass keeps one copy of it, where it keeps a copy per block of what a branch reads from the state.
    """
    return None

  @classmethod
  def depth_scale(cls, config: 'ModelConfig', name: str, branch_outputs: tuple[str, ...]) -> float:
    """The factor on the initial standard deviation of a kernel that depends on depth.

    Args:
      config: the model config.
      name: of the kernel, such as `attention/output`, or `head`.
      branch_outputs: the names of the last kernel of each branch.

    Returns:
      With `init_depth_scale` 1/sqrt(2 L) for the last kernel of each branch (Radford et al. 2019); otherwise 1.
    """
    return (2 * config.num_layers) ** -0.5 if config.init_depth_scale and name in branch_outputs else 1.0

  @classmethod
  def initial_kernel(cls, config: 'ModelConfig', name: str) -> Distribution | None:
    """The initial distribution of a kernel of a branch or of the connection, if the design states one.

    Args:
      config: the model config.
      name: of the kernel, such as `attention/output`.

    Returns:
      None for a kernel that follows `model.init` and `depth_scale`.
    """
    return None

  @classmethod
  def extra_products(cls, config: 'ModelConfig') -> int:
    """The multiply-adds per token in a forward pass, of the whole stack, that are not one per element of a kernel.

    Such are sums of streams with learned weights, and a kernel that is applied to several streams, once for each
    further stream. Norms, activations and products by a single scale or vector are not counted, as for branches.
    """
    return 0

  @classmethod
  def optimizer_factors(cls, config: 'ModelConfig', path: str) -> OptimizerFactors:
    """The factors on the optimizer's settings for a parameter.

    Args:
      config: the model config.
      path: the path in the parameter tree, such as `blocks/attention/query/kernel`.
    """
    return OptimizerFactors()

  def make_norm(self) -> Any:
    """A norm over the width of the stream, of the kind model.norm."""
    return make_norm(self.config.norm, self.config.d_model, self.config.use_bias)


CONNECTIONS: Registry[type[Connection]] = Registry('connection')


def _supporting(feature: str) -> str:
  return ' or '.join(name for name, part in CONNECTIONS.items() if feature in part.supports)


def connection(name: str):
  """Registers a subclass of Connection: `@connection('my_gate')`, for `model.connection=my_gate`.

  Raises:
    ConfigError: if the class is not a Connection, lacks `read` or `write`, or has invalid Options, or the name is taken
      or malformed.
  """

  def register(cls):
    where = f'connection {name!r}'
    if not (isinstance(cls, type) and issubclass(cls, Connection)):
      raise ConfigError(f'{where}: must be a subclass of model.Connection')
    for method in ('read', 'write'):
      if getattr(cls, method) is getattr(Connection, method):
        raise ConfigError(f'{where}: the class {cls.__name__} must define {method}')
    check_options_class(cls.Options, f'{where}: the class {cls.__name__}')
    CONNECTIONS.add(name, cls, cls)
    return cls

  return register
