"""What does the next layer receive if the branch replaces the stream, and what if it is added to it?

Compared for three outputs of the branch: as computed, zero, and minus its input.

Command: python reproduce.py --only=two_paths
Time: 2 seconds.
"""

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from lab.core.reproduction import Measured, Reproduction, exactly
from lab.figures.figure_style import BLACK, COLOURS, new_figure
from lab.reproduce.article_block import AVERAGE, IDENTITY, X, article_config, prefix_paths
from lab.reproduce.model_parts import NO_TAPS, module_with_weights
from model.block import Block

# A key of 1 at position 2 and a query of 200: in float32 position 1 has weight exactly 0, so position 2 reads itself.
ATTEND_TO_SELF = {
  'query/kernel': [[0.0, 0.0], [200.0, 0.0]],
  'key/kernel': [[0.0, 0.0], [1.0, 0.0]],
  'value/kernel': IDENTITY,
}
BRANCHES = {
  'as computed': AVERAGE,
  'set to zero': {},
  'set to -x': {**ATTEND_TO_SELF, 'output/kernel': [[-1.0, 0.0], [0.0, -1.0]]},
}
RESIDUAL_SCALES = {'replace': 0.0, 'add': 1.0}


def measure() -> dict:
  """Position 2 after the attention sublayer, for each branch, and the gradient that passes through a zero branch."""
  return jax.jit(after_attention)(X)


def after_attention(x_BTD: jax.Array) -> dict:
  """The measurements of `measure`, as one function to compile."""
  measured: dict = {'input': x_BTD[0, 1]}
  for name, scale in RESIDUAL_SCALES.items():
    config = article_config(attention_residual=scale)
    blocks = [module_with_weights(Block, config, prefix_paths('attention', w)) for w in BRANCHES.values()]
    measured[name] = jnp.stack([block(x_BTD, NO_TAPS)[0][0, 1] for block in blocks])
    measured[f'{name}_gradient'] = _input_gradient(blocks[1], x_BTD)
  return measured


def _input_gradient(block: Block, x_BTD: jax.Array) -> jax.Array:
  """The gradient at the input of position 2, if the gradient at the output of every position is (3, 4)."""
  y_BTD, pull_back = jax.vjp(lambda x: block(x, NO_TAPS)[0], x_BTD)
  return pull_back(jnp.broadcast_to(jnp.array([3.0, 4.0]), y_BTD.shape))[0][0, 1]


def draw(measured: Measured) -> Figure:
  """One panel for each residual scale: from x to the input of the next layer, for each branch."""
  figure = new_figure(2.6)
  both = figure.subplots(1, 2, sharex=True, sharey=True)
  colours = (BLACK, COLOURS[1], COLOURS[0])
  for axes, name in zip(both, RESIDUAL_SCALES, strict=True):
    left, height = measured['input']
    for colour, marker, branch, (x, y) in zip(colours, 'osD', BRANCHES, measured[name], strict=True):
      axes.plot([left, x], [height, y], color=colour, lw=1, ls=':', gid=f'from x: {branch}')
      axes.plot([x], [y], marker, color=colour, ms=6, gid=f'{name}: {branch}', label=f'branch {branch}')
    axes.plot([left], [height], 'o', color='white', mec=BLACK, ms=10, zorder=1, gid='x')
    axes.set(title=name, xlabel='first coordinate', xlim=(-0.4, 1.4), ylim=(-1.3, 1.8))
  both[0].set_ylabel('second coordinate')
  figure.legend(*both[0].get_legend_handles_labels(), loc='outside lower center', ncols=3)
  return figure


REPRODUCTION = Reproduction(
  claim='If the branch replaces the stream, a zero branch erases it; if it is added, the input remains.',
  source='The article, replace or add',
  expected=(
    exactly('replace', 'replace: output for a branch as computed, zero, minus x', ((1, 0.5), (0, 0), (0, -1))),
    exactly('add', 'add: output for a branch as computed, zero, minus x', ((1, 1.5), (0, 1), (0, 0))),
    exactly('replace_gradient', 'replace, zero branch: input gradient for output gradient (3, 4)', (0, 0)),
    exactly('add_gradient', 'add, zero branch: input gradient for output gradient (3, 4)', (3, 4)),
  ),
  seconds=2,
  draw=draw,
  caption=(
    'Input of the next layer at position 2. Ring: x, the input of the block; dotted: from x to the output. Only a '
    'branch equal to -x erases the stream that it is added to.'
  ),
  measure=measure,
)
