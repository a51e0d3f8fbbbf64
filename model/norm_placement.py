"""Norm placement: where the norms of a sublayer are, one line per placement."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax

NormPlacement = Literal['pre', 'post', 'sandwich', 'res_post', 'deepnorm', 'none']


class Placement(NamedTuple):
  """The sublayer y = output(a x + branch(x)) of a norm placement.

  Attributes:
    branch: (x, F, N, M) -> the term added to the skip path, where x is the stream x_BTD, F is attention or
      feed-forward, N is a norm, and M is a second norm if the sublayer has two.
    output: (a x + branch(x), N) -> the stream after the sublayer.
    norms: the number of norms of a sublayer.
    final_norm: whether the stack needs a norm before the head, because the last sublayer does not end in one.
  """

  branch: Callable[..., jax.Array]
  output: Callable[..., jax.Array] = lambda y, N: y
  norms: int = 1
  final_norm: bool = False


NORM_PLACEMENTS: dict[NormPlacement, Placement] = {
  'pre': Placement(lambda x, F, N, M: F(N(x)), final_norm=True),
  'post': Placement(lambda x, F, N, M: F(x), output=lambda y, N: N(y)),
  'sandwich': Placement(lambda x, F, N, M: M(F(N(x))), norms=2, final_norm=True),
  'res_post': Placement(lambda x, F, N, M: N(F(x)), final_norm=True),
  'deepnorm': Placement(lambda x, F, N, M: F(x), output=lambda y, N: N(y)),
  'none': Placement(lambda x, F, N, M: F(x), norms=0),
}
