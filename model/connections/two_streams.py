"""Two residual streams that share the branches: one normed after every sublayer, one that only sums."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from model.connections.base import Connection, Ends, connection
from model.norm import make_norm


class Streams(NamedTuple):
  """The stream that is normed after every sublayer, and the sum; x_BTD, float32."""

  normed: jax.Array
  summed: jax.Array


class TwoEnds(Ends):
  """The head reads normed + N(summed)."""

  def __init__(self, config):
    super().__init__(config)
    self.norm = make_norm(config.norm, config.d_model, config.use_bias)

  def open(self, x_BTD):
    """Both streams begin as the embedding."""
    return Streams(x_BTD, x_BTD)

  def close(self, state):
    return state.normed + self.norm(state.summed)


class SumOfBranches(TwoEnds):
  """The sum has the outputs of the branches alone."""

  def open(self, x_BTD):
    return Streams(x_BTD, jnp.zeros_like(x_BTD))


@connection('residual_dual')
class ResiDual(Connection):
  """y <- N(y + F(y)), s <- s + F(y); the head reads y + N(s) (Xie et al. 2023, ResiDual).

  s is the sum of all branch outputs. The authors' implementation starts it at the embedding by default.
  """

  final_norm = False
  ends = SumOfBranches

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    self.norm = self.make_norm()

  def read(self, state, site):
    return state.normed

  def write(self, state, y_BTD, site):
    return Streams(self.norm(state.normed + y_BTD), state.summed + y_BTD)


@connection('siamese_norm')
class SiameseNorm(Connection):
  """o = F(N(x + N(y))); x <- N(x + o / sqrt(2 l)), y <- y + o; the head reads x + N(y) (Li et al. 2026, SiameseNorm).

  l is the sublayer, counted from 1. The authors' code for vision models counts blocks there instead, and norms x before
  a sublayer rather than after it, so that the embedding is normed too.
  """

  final_norm = False
  ends = TwoEnds

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    self.norm, self.summed_norm, self.output_norm = self.make_norm(), self.make_norm(), self.make_norm()

  def read(self, state, site):
    return self.norm(state.normed + self.summed_norm(state.summed))

  def write(self, state, y_BTD, site):
    return Streams(self.output_norm(state.normed + y_BTD / jnp.sqrt(2.0 * site.index)), state.summed + y_BTD)
