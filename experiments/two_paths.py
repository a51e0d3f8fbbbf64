"""Replace against add: what the next layer gets when the branch is as it is, at zero, and at minus its input.

Command: python reproduce.py --only=two_paths
Time: 2 seconds.
"""

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from experiments.worked_example import IDENTITY, READ, X, config, inside
from lab.core.reproduction import Measured, Reproduction, exactly
from lab.figures.figure_style import BLACK, COLOURS, new_figure
from lab.reproduce.hand_set_weights import NO_TAPS, by_hand
from model.block import Block

# A key of 1 at position 2 and a query of 200: in float32 position 1 has weight exactly 0, and the read is x itself.
ITSELF = {'query/kernel': [[0.0, 0.0], [200.0, 0.0]], 'key/kernel': [[0.0, 0.0], [1.0, 0.0]], 'value/kernel': IDENTITY}
BRANCHES = {
  'as it is': READ,
  'at zero': {},
  'at minus x': {**ITSELF, 'output/kernel': [[-1.0, 0.0], [0.0, -1.0]]},
}
WIRINGS = {'replace': 0.0, 'add': 1.0}  # the residual scale


def measure() -> dict:
  """Position 2 after the attention sublayer, by wiring and branch, and what passes of a gradient where it is zero."""
  return jax.jit(after_attention)(X)


def after_attention(x_BTD: jax.Array) -> dict:
  """What `measure` returns, for the two positions of the article."""
  measured: dict = {'input': x_BTD[0, 1]}
  for wiring, scale in WIRINGS.items():
    blocks = [by_hand(Block, config(attention_residual=scale), inside('attention', w)) for w in BRANCHES.values()]
    measured[wiring] = jnp.stack([block(x_BTD, NO_TAPS)[0][0, 1] for block in blocks])
    measured[f'{wiring}_gradient'] = _gradient(blocks[1], x_BTD)
  return measured


def _gradient(block: Block, x_BTD: jax.Array) -> jax.Array:
  """What reaches the input at position 2 of the gradient (3, 4) at the output of every position."""
  y_BTD, pull = jax.vjp(lambda x: block(x, NO_TAPS)[0], x_BTD)
  return pull(jnp.broadcast_to(jnp.array([3.0, 4.0]), y_BTD.shape))[0][0, 1]


def draw(measured: Measured) -> Figure:
  """One panel a wiring: from x to what the next layer gets, for each branch."""
  figure = new_figure(2.6)
  both = figure.subplots(1, 2, sharex=True, sharey=True)
  colours = (BLACK, COLOURS[1], COLOURS[0])
  for axes, wiring in zip(both, WIRINGS, strict=True):
    left, height = measured['input']
    for colour, marker, branch, (x, y) in zip(colours, 'osD', BRANCHES, measured[wiring], strict=True):
      axes.plot([left, x], [height, y], color=colour, lw=1, ls=':', gid=f'from x: {branch}')
      axes.plot([x], [y], marker, color=colour, ms=6, gid=f'{wiring}: {branch}', label=f'branch {branch}')
    axes.plot([left], [height], 'o', color='white', mec=BLACK, ms=10, zorder=1, gid='x')
    axes.set(title=wiring, xlabel='first coordinate', xlim=(-0.4, 1.4), ylim=(-1.3, 1.8))
  both[0].set_ylabel('second coordinate')
  figure.legend(*both[0].get_legend_handles_labels(), loc='outside lower center', ncols=3)
  return figure


REPRODUCTION = Reproduction(
  claim='Where the branch replaces the stream, a branch that says nothing erases it; where it is added, x stays.',
  source='The article, replace or add',
  expected=(
    exactly('replace', 'replace: branch as it is, at zero, at minus x', ((1, 0.5), (0, 0), (0, -1))),
    exactly('add', 'add: branch as it is, at zero, at minus x', ((1, 1.5), (0, 1), (0, 0))),
    exactly('replace_gradient', 'replace, branch at zero: of the gradient (3, 4) passes', (0, 0)),
    exactly('add_gradient', 'add, branch at zero: of the gradient (3, 4) passes', (3, 4)),
  ),
  seconds=2,
  draw=draw,
  caption=(
    'What the next layer gets at position 2. Ring: x, which entered; dotted: from x to what leaves. A branch at '
    'minus x is the one that empties a stream it is added to.'
  ),
  measure=measure,
)
