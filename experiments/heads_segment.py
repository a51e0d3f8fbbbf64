"""Which outputs can one attention head produce from two values, and which can two heads produce?

Command: python reproduce.py --only=heads_segment
Time: 2 seconds.
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lab.core.reproduction import Measured, Reproduction, at_most, exactly
from lab.figures.figure_style import BLACK, COLOURS, new_figure
from lab.reproduce.article_block import AVERAGE, THREE_TO_ONE, X, article_config
from lab.reproduce.model_parts import module_with_weights
from model.attention import Attention

TARGET = (1.5, 0.75)


def measure(logits: int) -> dict:
  """The outputs of one head at position 2 for a range of attention logits of position 1, and the output of two heads.

  Args:
    logits: the number of logits, from -12 to 12.
  """
  one_head = jax.jit(jax.vmap(one_head_output))(jnp.linspace(-12.0, 12.0, logits))
  two_heads = module_with_weights(Attention, article_config(num_heads=2), AVERAGE | THREE_TO_ONE)(X)[0, 1]
  first, second = np.asarray(X[0])
  direction = (second - first) / np.linalg.norm(second - first)
  offset = np.asarray(one_head - first)
  target = jnp.array(TARGET)
  return {
    'values': X[0],
    'one_head': one_head,
    'off_the_segment': np.max(np.abs(offset[:, 0] * direction[1] - offset[:, 1] * direction[0])),
    'ends': jnp.stack([jnp.max(one_head, 0), jnp.min(one_head, 0)]),
    'nearest': jnp.min(jnp.linalg.norm(one_head - target, axis=-1)),
    'two_heads': two_heads,
    'two_heads_miss': jnp.linalg.norm(two_heads - target),
  }


def one_head_output(logit: jax.Array) -> jax.Array:
  """The output of one head at position 2, (2,), if the attention logit of position 1 is `logit` and that of 2 is 0."""
  query = jnp.array([[0.0, 0.0], [1.0, 0.0]]) * logit * 2**0.5  # cancels the 1/sqrt(K), K = 2
  weights = {**AVERAGE, 'query/kernel': query, 'key/kernel': [[0.5, 0.0], [0.0, 0.0]]}
  return module_with_weights(Attention, article_config(), weights)(X)[0, 1]


def draw(measured: Measured) -> Figure:
  """The two values, the outputs of one head, the target, and the rectangle of outputs of two heads of width 1."""
  figure = new_figure(2.7)
  axes = figure.add_subplot()
  values, outputs = np.array(measured['values']), np.array(measured['one_head'])
  axes.fill([0, 2, 2, 0], [0, 0, 1, 1], color=COLOURS[1], alpha=0.12, lw=0)
  axes.text(0.05, 0.06, 'two heads', color=COLOURS[1], fontsize=8)
  axes.plot(*outputs.T, color=COLOURS[0], lw=2, gid='one head')
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
  claim='One head can only output points on the segment between two values; two heads can reach a point off it.',
  source='The article, why several heads',
  expected=(
    at_most('off_the_segment', 'one head: largest distance from the line through the values', 1e-6),
    exactly('ends', 'one head: largest and smallest coordinates', ((2, 1), (0, 0)), 1e-4),
    exactly('nearest', 'one head: smallest distance to (3/2, 3/4)', 0.5 / 1.25**0.5, 1e-4),
    at_most('two_heads_miss', 'two heads: distance to (3/2, 3/4)', 1e-6),
  ),
  seconds=2,
  draw=draw,
  caption=(
    'Vermilion: outputs of one head at position 2, for attention logits from -12 to 12. Blue: possible outputs of two '
    'heads of width 1, one per coordinate (area), and their output with weights 3/4 and 1/4, the target (square).'
  ),
  measure=measure,
  settings={'logits': 961},
)
