"""Norm placement: where the norms of a sublayer are, one line a placement."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax

NormPlacement = Literal['pre', 'post', 'sandwich', 'res_post', 'deepnorm', 'none']


class Placement(NamedTuple):
  """A sublayer y = output(a x + branch(x)), by where it norms.

  Attributes:
    branch: (x, F, N, M) -> what is added to the skip path, from the stream x_BTD, the attention or feed-forward F, a
      norm N and, where a sublayer has two, a second norm M.
    output: (a x + branch(x), N) -> the stream after the sublayer.
    norms: how many norms a sublayer has.
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
