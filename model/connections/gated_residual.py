"""A learned gate in place of the addition of the branch to the stream."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from model.connections.base import Connection, connection
from model.field_checks import ConfigError
from model.linear import Linear


@connection('gated_residual')
class GatedResidual(Connection):
  """g(x, relu(F(N(x)))), g a GRU or a highway gate that starts near g(x, y) = x (Parisotto et al. 2019, GTrXL).

  gru: r = sigmoid(y W_r + x U_r), z = sigmoid(y W_z + x U_z - b), g = (1 - z) * x + z * tanh(y W_g + (r * x) U_g).
  highway: z = sigmoid(-(x U_z + b)), g = (1 - z) * x + z * y.

  A large b closes the gate: then g(x, y) = x. The kernels are drawn as all others are. Like `pre`, it has a final norm,
  which the equations of GTrXL do not mention. A GRU gate has 6 D^2 + D parameters, a highway gate D^2 + D.
  """

  @dataclasses.dataclass(frozen=True)
  class Options:
    """Options of the gated residual.

    Attributes:
      gate: `gru` or `highway`.
      bias: the initial value of b.
    """

    gate: str = 'gru'
    bias: float = 2.0

    def __post_init__(self):
      if self.gate not in ('gru', 'highway'):
        raise ConfigError(f'model.connection=gated_residual:gate={self.gate!r}: must be one of gru, highway')

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    self.norm = self.make_norm()
    self.gate_bias = nnx.Param(jnp.full(config.d_model, config.connection_options.bias))
    self.update_x = self._linear()  # U_z
    if config.connection_options.gate == 'gru':
      self.update_y, self.reset_x, self.reset_y = self._linear(), self._linear(), self._linear()  # W_z, U_r, W_r
      self.candidate_x, self.candidate_y = self._linear(), self._linear()  # U_g, W_g

  def _linear(self) -> Linear:
    return Linear(self.config.d_model, self.config.d_model, False, self.config.dtype)

  def read(self, state, site):
    return self.norm(state)

  def term(self, y_BTD, site):
    return jax.nn.relu(y_BTD)

  def write(self, state, y_BTD, site):
    x_BTD, bias = state, self.gate_bias[...]
    if self.config.connection_options.gate == 'highway':
      z_BTD, new_BTD = jax.nn.sigmoid(-(_float32(self.update_x(x_BTD)) + bias)), y_BTD
    else:
      r_BTD = jax.nn.sigmoid(_float32(self.reset_y(y_BTD)) + _float32(self.reset_x(x_BTD)))
      z_BTD = jax.nn.sigmoid(_float32(self.update_y(y_BTD)) + _float32(self.update_x(x_BTD)) - bias)
      new_BTD = jnp.tanh(_float32(self.candidate_y(y_BTD)) + _float32(self.candidate_x(r_BTD * x_BTD)))
    return (1 - z_BTD) * x_BTD + z_BTD * new_BTD


def _float32(x: jax.Array) -> jax.Array:
  return x.astype(jnp.float32)
