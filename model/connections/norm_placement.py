"""One stream with a skip connection, y = a x + F(x), and where its norms are."""

from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from model.connections.base import Connection, Site, connection
from model.field_checks import ConfigError

if TYPE_CHECKING:
  from model.config import ModelConfig


class OneStream(Connection):
  """y = a x + F(x), where a is the residual scale; with ReZero a x + s F(x) (Bachlechner et al. 2020).

  Attributes:
    norms: the names of the norms of a sublayer.
  """

  supports: ClassVar[tuple[str, ...]] = ('residual_scale',)
  norms: ClassVar[tuple[str, ...]] = ('norm',)
  norm: Any
  output_norm: Any

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    shares_norm = config.parallel and sublayer == 'feed_forward'
    for name in self.norms if not shares_norm else ():
      setattr(self, name, self.make_norm())
    self.scale = nnx.Param(jnp.zeros(())) if config.rezero else None

  @classmethod
  def residual_scale(cls, config: 'ModelConfig', sublayer: str) -> float:
    """The residual scale a of a sublayer."""
    return config.attention_residual if sublayer == 'attention' else config.feed_forward_residual

  def read(self, state: jax.Array, site: Site) -> jax.Array:
    return state

  def term(self, y_BTD: jax.Array, site: Site) -> jax.Array:
    return y_BTD if self.scale is None else self.scale[...] * y_BTD

  def write(self, state: jax.Array, y_BTD: jax.Array, site: Site) -> jax.Array:
    return self.residual_scale(self.config, self.sublayer) * state + y_BTD


@connection('pre')
class PreNorm(OneStream):
  """a x + F(N(x)) (Xiong et al. 2020)."""

  supports: ClassVar[tuple[str, ...]] = ('residual_scale', 'rezero', 'parallel')

  def read(self, state, site):
    return self.norm(state)


@connection('post')
class PostNorm(OneStream):
  """N(a x + F(x)) (Vaswani et al. 2017)."""

  final_norm = False

  def write(self, state, y_BTD, site):
    return self.norm(super().write(state, y_BTD, site))


@connection('sandwich')
class SandwichNorm(OneStream):
  """a x + M(F(N(x))) (Ding et al. 2021); with `embedding_norm`, Peri-LN."""

  norms = ('norm', 'output_norm')

  def read(self, state, site):
    return self.norm(state)

  def term(self, y_BTD, site):
    return self.output_norm(super().term(y_BTD, site))


@connection('res_post')
class ResPostNorm(OneStream):
  """a x + N(F(x)) (Liu et al. 2022, Swin V2)."""

  def term(self, y_BTD, site):
    return self.norm(super().term(y_BTD, site))


@connection('deepnorm')
class DeepNorm(PostNorm):
  """N(a x + F(x)) with a = (2 L)^(1/4), and smaller initial kernels (Wang et al. 2022)."""

  @classmethod
  def residual_scale(cls, config, sublayer):
    return (2 * config.num_layers) ** 0.25

  @classmethod
  def depth_scale(cls, config, name, branch_outputs):
    """(8 L)^(-1/4) for the value, attention-output and feed-forward kernels, with or without `init_depth_scale`."""
    scaled = ('attention/value', 'feed_forward/gate', 'feed_forward/up', *branch_outputs)
    return (8 * config.num_layers) ** -0.25 if name in scaled else 1.0

  @classmethod
  def check(cls, config):
    scales = (config.attention_residual, config.feed_forward_residual)
    if scales != (1.0, 1.0):
      raise ConfigError(
        f'model.connection=deepnorm sets its own residual scale (2L)^(1/4): model.attention_residual={scales[0]} and '
        f'model.feed_forward_residual={scales[1]} must both be 1'
      )
    super().check(config)


@connection('none')
class NoNorm(OneStream):
  """a x + F(x), without norms."""

  supports = ('residual_scale', 'rezero')
  norms = ()
  final_norm = False
