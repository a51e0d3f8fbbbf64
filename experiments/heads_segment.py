"""All that one head can read of two values is the segment between them; two heads reach a point off it.

Command: python reproduce.py --only=heads_segment
Time: 2 seconds.
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments.worked_example import READ, THREE_TO_ONE, X, config
from lab.core.reproduction import Measured, Reproduction, at_most, exactly
from lab.figures.figure_style import BLACK, COLOURS, new_figure
from lab.reproduce.hand_set_weights import by_hand
from model.attention import Attention

TARGET = (1.5, 0.75)


def measure(logits: int) -> dict:
  """What one head reads at position 2 at many attention logits of position 1, and what two heads read.

  Args:
    logits: how many, from -12 to 12.
  """
  swept = jnp.linspace(-12.0, 12.0, logits)
  one_head_2 = jax.jit(jax.vmap(read_with_logit))(swept)
  two_heads = by_hand(Attention, config(num_heads=2), READ | THREE_TO_ONE)(X)[0, 1]
  first, second = np.asarray(X[0])
  along = (second - first) / np.linalg.norm(second - first)
  off = np.asarray(one_head_2 - first)
  target = jnp.array(TARGET)
  return {
    'values': X[0],
    'one_head': one_head_2,
    'off_the_segment': np.max(np.abs(off[:, 0] * along[1] - off[:, 1] * along[0])),
    'ends': jnp.stack([jnp.max(one_head_2, 0), jnp.min(one_head_2, 0)]),
    'nearest': jnp.min(jnp.linalg.norm(one_head_2 - target, axis=-1)),
    'two_heads': two_heads,
    'two_heads_miss': jnp.linalg.norm(two_heads - target),
  }


def read_with_logit(logit: jax.Array) -> jax.Array:
  """What one head reads at position 2 if position 1 has this logit, and position 2 has 0; shape (2,)."""
  query = jnp.array([[0.0, 0.0], [1.0, 0.0]]) * logit * 2**0.5  # undoes the 1/sqrt(K) of K = 2
  weights = {**READ, 'query/kernel': query, 'key/kernel': [[0.5, 0.0], [0.0, 0.0]]}
  return by_hand(Attention, config(), weights)(X)[0, 1]


def draw(measured: Measured) -> Figure:
  """The two values, what one head read, the target, and the rectangle that two heads of width 1 reach."""
  figure = new_figure(2.7)
  axes = figure.add_subplot()
  values, reads = np.array(measured['values']), np.array(measured['one_head'])
  axes.fill([0, 2, 2, 0], [0, 0, 1, 1], color=COLOURS[1], alpha=0.12, lw=0)
  axes.text(0.05, 0.06, 'two heads', color=COLOURS[1], fontsize=8)
  axes.plot(*reads.T, color=COLOURS[0], lw=2, gid='one head')
  axes.text(0.75, 0.44, 'one head', color=COLOURS[0], fontsize=8, ha='right')
  axes.plot(*values.T, 'o', color=BLACK, ms=6, gid='values')
  for name, (x, y), offset in zip(
    ('value of position 1', 'value of position 2'), values, ((0, -13), (6, 7)), strict=True
  ):
    side = 'right' if x else 'left'
    axes.annotate(name, (x, y), offset, textcoords='offset points', fontsize=8, ha=side)
  x, y = measured['two_heads']
  axes.plot([x], [y], 's', color=COLOURS[1], ms=6, gid='two heads')
  axes.plot([TARGET[0]], [TARGET[1]], '+', color='white', ms=5, mew=1.2, zorder=5, gid='target')
  axes.annotate('target (3/2, 3/4)', (x, y), (-6, 6), textcoords='offset points', fontsize=8, ha='right')
  axes.set(xlabel='first coordinate', ylabel='second coordinate', xlim=(-0.1, 2.15), ylim=(-0.17, 1.25))
  axes.set_aspect('equal')
  return figure


REPRODUCTION = Reproduction(
  claim='All that one head can read of two values is the segment between them; two heads reach a point off it.',
  source='The article, why several heads',
  expected=(
    at_most('off_the_segment', 'farthest that one head reads from the line through the values', 1e-6),
    exactly('ends', 'largest and smallest coordinates it reads', ((2, 1), (0, 0)), 1e-4),
    exactly('nearest', 'nearest it comes to (3/2, 3/4)', 0.5 / 1.25**0.5, 1e-4),
    at_most('two_heads_miss', 'how far two heads are from it', 1e-6),
  ),
  seconds=2,
  draw=draw,
  caption=(
    'Vermilion: what one head reads at position 2, at attention logits from -12 to 12. Blue: what two heads of '
    'width 1, one a coordinate, can read (area) and do read with weights 3/4 and 1/4 (square): the target.'
  ),
  measure=measure,
  settings={'logits': 961},
)
