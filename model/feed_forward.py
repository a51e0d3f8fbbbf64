"""The feed-forward branch: each position alone, through a wider layer and back."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from model.config import ModelConfig
from model.linear import Linear, project
from model.recompute import recomputed

# What is applied to the one projection of an ungated feed-forward, or to the gate of a gated one (Shazeer 2020).
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  'relu': jax.nn.relu,
  'gelu': lambda x: jax.nn.gelu(x, approximate=False),
  'silu': jax.nn.silu,
  'relu2': lambda x: jnp.square(jax.nn.relu(x)),  # So et al. 2021
  'glu': jax.nn.sigmoid,
  'swiglu': jax.nn.silu,
  'geglu': lambda x: jax.nn.gelu(x, approximate=False),
  'reglu': jax.nn.relu,
  'bilinear': lambda x: x,
}
RECTIFIED = frozenset({'relu', 'relu2', 'reglu'})  # those whose units can be silent


class FeedForward(nnx.Module):
  """down(f(up(x))), or gated: down(f(gate(x)) * up(x))."""

  def __init__(self, config: ModelConfig):
    d_model, d_ff = config.d_model, config.ff_width
    self.gate = Linear(d_model, d_ff, config.use_bias, config.dtype) if config.gated else None
    self.up = Linear(d_model, d_ff, config.use_bias, config.dtype)
    self.down = Linear(d_ff, d_model, config.use_bias, config.dtype)
    self.activation = config.feed_forward

  def __call__(self, x_BTD: jax.Array) -> jax.Array:
    activate = ACTIVATIONS[self.activation]
    definition, down = nnx.split(self.down)

    def write(down, up_BTF, gate_BTF=None):
      hidden_BTF = activate(up_BTF) if gate_BTF is None else activate(gate_BTF) * up_BTF
      return nnx.merge(definition, down)(hidden_BTF)

    projections = [self.up] if self.gate is None else [self.up, self.gate]
    return recomputed(write, down, *project(x_BTD, *[[linear] for linear in projections]))

  def observe(self, x_BTD: jax.Array) -> dict[str, dict[str, jax.Array]]:
    """Which units speak at all on this input, if they can be silent; see model/observation.py."""
    if self.activation not in RECTIFIED:
      return {'mean': {}, 'max': {}}
    rectified = self.up if self.gate is None else self.gate
    active_F = jnp.any(jax.lax.stop_gradient(rectified(x_BTD)) > 0, (0, 1))
    return {'mean': {}, 'max': {'active_units': active_F.astype(jnp.float32)}}
