"""No skip path, y = F(N(x)); shaped so that each branch starts as an orthogonal map of every position."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax.tree_util import Partial

from model.connections.base import connection
from model.connections.norm_placement import PreNorm
from model.distributions import Orthogonal
from model.field_checks import ConfigError

SHAPED = {  # name of a kernel: its initial distribution
  'attention/value': Orthogonal(),
  'attention/output': Orthogonal(),
  'feed_forward/up': Orthogonal(),
  'feed_forward/down': Orthogonal(transpose_of='blocks/feed_forward/up/kernel'),
}


@connection('skipless')
class Skipless(PreNorm):
  """F(N(x)), no skip path; heads alpha V + beta A V, alpha = 1 and beta = 0 at first (He et al. 2023, value-SkipInit).

  A is the attention matrix and V the values. Each head learns its alpha and beta, as in He & Hofmann 2024; He et al.
  have two scalars per layer. The value and output kernels start as orthogonal matrices. Without this, attention
  averages the positions until they are all alike (Dong et al. 2021), and the gradients of queries and keys vanish
  (Noci et al. 2022).

  The feed-forward has no skip path either, and is shaped in the same way: its hidden activations are
  alpha up(x) + beta h(x), where h(x) are those of `model.feed_forward`, and alpha and beta are learned from 1 and 0. up
  starts orthogonal and down as its transpose, so that the feed-forward starts as the identity. He et al. make the
  activation nearly linear at first: a Leaky ReLU, whose slope follows from the depth (TAT, Zhang et al. 2022). That is
  such a mixture of x and relu(x); ours is one for every activation, gated or not. If up and down were independent,
  their product would not be orthogonal, since d_ff is larger than d_model, and the rank would fall with depth.

  All of the gradient is in the branch: the products of the split that involve the skip path are 0. Shaped, and with
  RMSNorm, its norm is the same at every sublayer at first. `init` and `init_depth_scale` do not affect the four
  orthogonal kernels.

  With `shaped=false` it is `pre` with both residual scales 0. Measured with 24 blocks of width 64 on bytes of the King
  James Bible, 200 steps of 16 sequences of 32 with AdamW, one seed: validation loss in nats by learning rate (that of
  byte frequencies is 3.08). Like He & Hofmann 2024, we find that it trains more slowly than with a skip path.

                     3e-4    1e-3    3e-3
    shaped           2.60    2.45    3.01
    shaped=false     3.22    3.10    3.10
    pre              2.43    2.06    1.92
  """

  supports = ()

  @dataclasses.dataclass(frozen=True)
  class Options:
    """Options of the model without skip paths.

    Attributes:
      shaped: whether each branch starts as an orthogonal map of every position.
    """

    shaped: bool = True

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    if config.connection_options.shaped:
      shape = (config.num_heads,) if sublayer == 'attention' else ()
      self.alpha, self.beta = nnx.Param(jnp.ones(shape)), nnx.Param(jnp.zeros(shape))

  def write(self, state, y_BTD, site):
    return y_BTD

  def run(self, skip, branch, F, site):
    if not self.config.connection_options.shaped:
      return super().run(skip, branch, F, site)
    mix = Partial(_mix, self.alpha[..., None], self.beta[..., None])
    return super().run(skip, branch, lambda x_BTD: F(x_BTD, mix=mix), site)

  @classmethod
  def initial_kernel(cls, config, name):
    return SHAPED.get(name) if config.connection_options.shaped else None

  @classmethod
  def check(cls, config):
    super().check(config)
    if not config.connection_options.shaped:
      return
    if not config.kv_heads == config.num_heads == config.d_model / config.key_width:
      raise ConfigError(
        'model.connection=skipless has orthogonal value and output kernels, which must be square: model.num_kv_heads='
        f'{config.num_kv_heads} must be 0 and num_heads * head_dim {config.num_heads * config.key_width} must be '
        f'd_model {config.d_model}'
      )
    if config.ff_width < config.d_model:
      raise ConfigError(
        f'model.connection=skipless needs a feed-forward that starts as the identity: its width {config.ff_width} must '
        f'be at least model.d_model={config.d_model}'
      )
    if config.attention_gate:
      raise ConfigError(
        'model.connection=skipless needs attention that starts as an orthogonal map: model.attention_gate must be '
        'false, because the gate starts as a random factor'
      )


def _mix(alpha: jax.Array, beta: jax.Array, computed: jax.Array, linear: jax.Array) -> jax.Array:
  """Mixes as alpha linear + beta computed, in float32, and returned in the compute dtype."""
  return (alpha * linear + beta * computed).astype(computed.dtype)
