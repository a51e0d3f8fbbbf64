"""The feed-forward branch: a position-wise network with one hidden layer, optionally gated."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.tree_util import Partial

from model.activations import ACTIVATIONS
from model.config import ModelConfig
from model.forward_statistics import Stats
from model.kernels.projection import project
from model.kernels.recompute import recomputed
from model.linear import Linear


class FeedForward(nnx.Module):
  """down(f(up(x))) (Vaswani et al. 2017, equation 2), or gated: down(f(gate(x)) * up(x)) (Shazeer 2020, equation 6)."""

  def __init__(self, config: ModelConfig):
    d_model, d_ff = config.d_model, config.ff_width
    self.gate = Linear(d_model, d_ff, config.use_bias, config.dtype) if config.gated else None
    self.up = Linear(d_model, d_ff, config.use_bias, config.dtype)
    self.down = Linear(d_ff, d_model, config.use_bias, config.dtype)
    self.activation = config.feed_forward

  def __call__(self, x_BTD: jax.Array, mix: Partial | None = None) -> jax.Array:
    """Runs the branch; the backward pass recomputes everything between the projections.

    Args:
      x_BTD: the input of the branch, float32.
      mix: replaces the hidden activations h_BTF by a function of them and up(x)_BTF; a `jax.tree_util.Partial`, whose
        bound arguments are the arrays that it uses. None: as they are.

    Returns:
      (B, T, D) in the compute dtype.
    """
    f, parts = ACTIVATIONS[self.activation].function, (self.down, mix)
    if self.gate is None:
      return recomputed(lambda parts, up_BTF: _down(parts, f(up_BTF), up_BTF), parts, self.up(x_BTD))
    up_BTF, gate_BTF = project(x_BTD, [self.up], [self.gate])
    return recomputed(
      lambda parts, up_BTF, gate_BTF: _down(parts, f(gate_BTF) * up_BTF, up_BTF), parts, up_BTF, gate_BTF
    )

  def statistics(self, x_BTD: jax.Array) -> Stats:
    """Which hidden units are active for this input, if units can be dead; see model/forward_statistics.py."""
    if not ACTIVATIONS[self.activation].rectified:
      return {'mean': {}, 'max': {}}
    rectified = self.up if self.gate is None else self.gate
    active_F = jnp.any(jax.lax.stop_gradient(rectified(x_BTD)) > 0, (0, 1))
    return {'mean': {}, 'max': {'active_units': active_F.astype(jnp.float32)}}


def _down(parts: tuple[Linear, Partial | None], h_BTF: jax.Array, up_BTF: jax.Array) -> jax.Array:
  down, mix = parts
  return down(h_BTF if mix is None else mix(h_BTF, up_BTF))
