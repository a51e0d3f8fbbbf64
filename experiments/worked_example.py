"""Do BlockLab's modules reproduce the worked example of the article: one block of width 2, computed by hand?

Command: python reproduce.py --only=worked_example
Time: 2 seconds.
"""

import functools

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from lab.core.reproduction import Measured, Reproduction, at_most, exactly
from lab.figures.figure_style import BLACK, COLOURS, GREY, new_figure
from lab.reproduce.article_block import AVERAGE, THREE_TO_ONE, X, article_config, prefix_paths
from lab.reproduce.model_parts import NO_TAPS, module_with_weights
from model.attention import Attention
from model.block import Block
from model.connections import Site
from model.feed_forward import FeedForward
from model.linear import Linear

A_MINUS_B_AND_B = [[1.0, 0.0], [-1.0, 1.0]]
# h = relu(q - p) of the two coordinates (p, q), written to the first one
Q_MINUS_P = {'up/kernel': [[-1.0], [1.0]], 'down/kernel': [[1.0, 0.0]]}


def measure() -> dict:
  """Every step of the example; vectors are those of position 2."""
  return jax.jit(steps)(X)  # one program compiles ten times as fast as a hundred single operations


def steps(x_BTD: jax.Array) -> dict:
  """The measurements of `measure`, as one function to compile."""
  averaged = module_with_weights(Attention, article_config(), AVERAGE)(x_BTD)
  added = module_with_weights(Block, article_config(), prefix_paths('attention', AVERAGE))(x_BTD, NO_TAPS)[0]
  two_heads = article_config(num_heads=2)
  concatenated = module_with_weights(Attention, two_heads, AVERAGE | THREE_TO_ONE)(x_BTD)
  projected = {**AVERAGE, **THREE_TO_ONE, 'output/kernel': A_MINUS_B_AND_B}
  update = module_with_weights(Attention, two_heads, projected)(x_BTD)
  attention = prefix_paths('attention', projected)
  after_attention = module_with_weights(Block, two_heads, attention)(x_BTD, NO_TAPS)[0]
  block = module_with_weights(Block, two_heads, attention | prefix_paths('feed_forward', Q_MINUS_P))
  first, second = module_with_weights(Attention, article_config(), AVERAGE).value(x_BTD)[0]
  hidden = jax.nn.relu(module_with_weights(FeedForward, article_config(), Q_MINUS_P).up(after_attention))
  streams = {
    'has': x_BTD, 'read': averaged, 'added': added, 'concatenated': concatenated, 'update': update,
    'after_attention': after_attention, 'hidden': hidden, 'after_block': block(x_BTD, NO_TAPS)[0],
  }  # fmt: skip
  return {
    **{name: value[0, 1] for name, value in streams.items()},
    'one_head_needs': (jnp.array([1.5, 0.75]) - second) / (first - second),  # a first + (1 - a) second = (3/2, 3/4)
    **zero_branch_outputs(x_BTD),
    'without_relu': error_of_merged_maps(),
    'four_heads': module_with_weights(Attention, article_config(num_heads=4, head_dim=2), {}).output.kernel[...].shape,
    **logit_ratios(x_BTD),
    **input_gradient(),
  }


def zero_branch_outputs(x_BTD: jax.Array) -> dict:
  """Outputs at position 2 of blocks with zero branches."""
  configs = {
    'zero_added': article_config(),
    'zero_replaced': article_config(attention_residual=0.0),
    'zero_pre': article_config(connection='pre'),
    'zero_post': article_config(connection='post', norm='layer'),
  }
  return {name: module_with_weights(Block, config, {})(x_BTD, NO_TAPS)[0][0, 1] for name, config in configs.items()}


def error_of_merged_maps() -> jax.Array:
  """The largest difference between the two feed-forward maps in sequence, without the ReLU, and their product."""
  ff = module_with_weights(FeedForward, article_config(), Q_MINUS_P)
  merged = Linear(2, 2, use_bias=False, dtype='float32')
  merged.kernel[...] = ff.up.kernel[...] @ ff.down.kernel[...]
  points = jax.random.normal(jax.random.key(0), (1, 100, 2))
  return jnp.max(jnp.abs(ff.down(ff.up(points)) - merged(points)))


def logit_ratios(x_BTD: jax.Array) -> dict:
  """Attention logits of two heads for the input 2 X over those for X, without a norm and under RMSNorm."""
  weights = prefix_paths(
    'attention', AVERAGE | {'query/kernel': [[0.3, 0.5], [0.7, -0.4]], 'key/kernel': [[0.2, 0.6], [1.0, 0.1]]}
  )
  ratios = {}
  for name, placement in (('doubled', 'none'), ('doubled_under_norm', 'pre')):
    block = module_with_weights(Block, article_config(num_heads=2, connection=placement), weights)
    read = functools.partial(block.attention_connection.read, site=Site(jnp.array(1), 2))
    once, twice = (_logits(block.attention, read(x)) for x in (x_BTD, 2 * x_BTD))
    ratios[name] = jnp.max(twice / once)
  return ratios


def _logits(attention: Attention, x_BTD: jax.Array) -> jax.Array:
  q_BTHK, k_BTHK, _ = attention.queries_keys_values(x_BTD)
  return jnp.einsum('bthk,bshk->bhts', q_BTHK, k_BTHK)


def input_gradient() -> dict:
  """The gradient at the input of the feed-forward sublayer for output gradient (1, 0), and its parts at the taps."""
  ff = module_with_weights(
    Block, article_config(), prefix_paths('feed_forward', Q_MINUS_P)
  )  # attention is zero, so its sublayer returns its input
  u_BTD = jnp.array([[[0.75, 1.75]]])
  _, pull = jax.vjp(lambda x, taps: ff(x, taps)[0], u_BTD, NO_TAPS)
  gradient, taps = pull(jnp.array([[[1.0, 0.0]]]))
  return {'gradient': gradient[0, 0], 'gradient_parts': taps[1]}


def draw(measured: Measured) -> Figure:
  """The residual stream of position 2 in the plane."""
  figure = new_figure(3.0)
  axes = figure.add_subplot()
  points = {
    '$x_2$': measured['has'], '$u_2$': measured['after_attention'], '$y_2$': measured['after_block'],
  }  # fmt: skip
  x, y = zip(*points.values(), strict=True)
  axes.plot(x, y, '-o', color=BLACK, lw=1.5, gid='two heads, added back')
  for name, (left, height) in points.items():
    below = -14 if name == '$x_2$' else 6
    axes.annotate(f'{name} ({left:g}, {height:g})', (left, height), (6, below), textcoords='offset points', fontsize=8)
  (hx, hy), (ax, ay) = measured['has'], measured['added']
  axes.plot([hx, ax], [hy, ay], '--s', color=COLOURS[1], lw=1, gid='one head, added back')
  axes.annotate(
    f'one head: ({ax:g}, {ay:g})', (ax, ay), (6, -12), textcoords='offset points', fontsize=8, color=COLOURS[1]
  )
  rx, ry = measured['read']
  axes.plot([rx], [ry], 'D', color=GREY, ms=5, gid='output of one head')
  axes.annotate(f'its output: ({rx:g}, {ry:g})', (rx, ry), (6, 4), textcoords='offset points', fontsize=8, color=GREY)
  axes.set(xlabel='first coordinate', ylabel='second coordinate', xlim=(-0.15, 2.6), ylim=(0.3, 2.1))
  axes.set_aspect('equal')
  return figure


REPRODUCTION = Reproduction(
  claim='A block of width 2 gives the numbers that the article computes by hand.',
  source='The article, the worked example',
  expected=(
    exactly('has', 'input at position 2', (0, 1)),
    exactly('read', 'one head averages (2, 0) and (0, 1)', (1, 0.5)),
    exactly('added', 'its output added to the input', (1, 1.5)),
    exactly('zero_replaced', 'zero branch, replacing the stream', (0, 0)),
    exactly('zero_added', 'zero branch, added', (0, 1)),
    exactly('one_head_needs', 'attention weights of one head for (3/2, 3/4)', (0.75, 0.25)),
    exactly('concatenated', 'two heads with weights 3/4 and 1/4', (1.5, 0.75), 1e-6),
    exactly('update', 'after the output projection (A - B, B)', (0.75, 0.75), 1e-6),
    exactly('after_attention', 'added to the input', (0.75, 1.75), 1e-6),
    exactly('hidden', 'feed-forward: h = relu(q - p)', (1,), 1e-6),
    exactly('after_block', 'h added to the first coordinate', (1.75, 1.75), 1e-6),
    at_most('without_relu', 'without the ReLU: two maps minus their product', 1e-6),
    exactly('four_heads', 'output kernel of 4 heads with head_dim 2', (8, 2)),
    exactly('doubled', 'input doubled: ratio of attention logits', 4, 1e-6),
    exactly('doubled_under_norm', 'input doubled: ratio under RMSNorm', 1, 1e-5),
    exactly('zero_pre', 'both branches zero, Pre-Norm', (0, 1)),
    exactly('zero_post', 'both branches zero, Post-LN: LayerNorm of x', (-1, 1), 1e-5),
    exactly('gradient', 'backward: g + J^T g for g = (1, 0)', (0, 1)),
    exactly('gradient_parts', '|skip|^2, |branch|^2 and inner product', (1, 2, -1)),
  ),
  seconds=2,
  draw=draw,
  caption=(
    'The residual stream of position 2 through one block: attention moves it from $x_2$ to $u_2$, the feed-forward to '
    '$y_2$. Dashed: one head that averages both positions, added to the input.'
  ),
  measure=measure,
)
