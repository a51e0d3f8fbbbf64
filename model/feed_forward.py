"""The feed-forward branch: a position-wise network with one hidden layer, optionally gated."""

import jax
import jax.numpy as jnp
from flax import nnx

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

  def __call__(self, x_BTD: jax.Array) -> jax.Array:
    """Runs the branch; the backward pass recomputes everything between the projections.

    Args:
      x_BTD: the input of the branch, float32.

    Returns:
      (B, T, D) in the compute dtype.
    """
    f = ACTIVATIONS[self.activation].function
    if self.gate is None:
      return recomputed(lambda down, up_BTF: down(f(up_BTF)), self.down, self.up(x_BTD))
    up_BTF, gate_BTF = project(x_BTD, [self.up], [self.gate])
    return recomputed(lambda down, up_BTF, gate_BTF: down(f(gate_BTF) * up_BTF), self.down, up_BTF, gate_BTF)

  def statistics(self, x_BTD: jax.Array) -> Stats:
    """Which hidden units are active for this input, if units can be dead; see model/forward_statistics.py."""
    if not ACTIVATIONS[self.activation].rectified:
      return {'mean': {}, 'max': {}}
    rectified = self.up if self.gate is None else self.gate
    active_F = jnp.any(jax.lax.stop_gradient(rectified(x_BTD)) > 0, (0, 1))
    return {'mean': {}, 'max': {'active_units': active_F.astype(jnp.float32)}}
