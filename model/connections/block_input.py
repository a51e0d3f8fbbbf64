"""A stream, and the input of the block, which the feed-forward's sublayer adds once more."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from model.connections.base import Ends, connection
from model.connections.norm_placement import PostNorm


class StreamAndInput(NamedTuple):
  """The stream, and between the two sublayers of a block the input of the block, otherwise 0; x_BTD, float32."""

  stream: jax.Array
  block_input: jax.Array


class InputEnds(Ends):
  """Opens with the embedding; the head reads the stream."""

  def open(self, x_BTD):
    return StreamAndInput(x_BTD, jnp.zeros_like(x_BTD))

  def close(self, state):
    return state.stream


@connection('b2t')
class BottomToTop(PostNorm):
  """u = N(x + attention(x)), y = N(x + u + feed_forward(u)), x the block's input (Takase et al. 2022, B2T).

  The path from x to y counts as skip.
  """

  supports = ()
  ends = InputEnds

  def read(self, state, site):
    return state.stream

  def write(self, state, y_BTD, site):
    if self.sublayer == 'attention':
      return StreamAndInput(super().write(state.stream, y_BTD, site), state.stream)
    after_BTD = super().write(state.block_input + state.stream, y_BTD, site)
    return StreamAndInput(after_BTD, jnp.zeros_like(after_BTD))
