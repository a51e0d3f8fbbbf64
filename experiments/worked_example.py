"""The article's example of one position of width 2, executed: every step through the modules, weights set by hand.

Command: python reproduce.py --only=worked_example
Time: 2 seconds.
"""

import math

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from lab.core.reproduction import Measured, Reproduction, at_most, exactly
from lab.figures.figure_style import BLACK, COLOURS, GREY, new_figure
from lab.reproduce.hand_set_weights import NO_TAPS, by_hand
from model import ModelConfig
from model.attention import Attention
from model.block import Block
from model.feed_forward import FeedForward
from model.linear import Linear

ARTICLE = {
  'd_model': 2, 'num_heads': 1, 'd_ff': 1, 'feed_forward': 'relu', 'norm_placement': 'none', 'position': 'none',
  'vocab_size': 2, 'num_layers': 1,
}  # fmt: skip
X = jnp.array([[[2.0, 0.0], [0.0, 1.0]]])  # positions 1 and 2; the article follows position 2
IDENTITY = [[1.0, 0.0], [0.0, 1.0]]
READ = {'value/kernel': IDENTITY, 'output/kernel': IDENTITY}  # queries and keys at 0 read with equal weights
THREE_TO_ONE = {  # position 1 has key 1, position 2 key 0; the heads ask for it with log 3 and -log 3
  'query/kernel': [[0.0, 0.0], [math.log(3), -math.log(3)]],
  'key/kernel': [[0.5, 0.5], [0.0, 0.0]],
}
A_MINUS_B_AND_B = [[1.0, 0.0], [-1.0, 1.0]]
Q_MINUS_P = {'up/kernel': [[-1.0], [1.0]], 'down/kernel': [[1.0, 0.0]]}  # h = relu(q - p), written to p


def config(**changes) -> ModelConfig:
  """The article's block: one head, no norm, no positions."""
  return ModelConfig(**{**ARTICLE, **changes})


def inside(part: str, weights: dict) -> dict:
  """Weights of a part of a block by their path in the block."""
  return {f'{part}/{name}': value for name, value in weights.items()}


def measure() -> dict:
  """Each step of the article; vectors are those of position 2."""
  return jax.jit(steps)(X)  # in one program: a hundred operations compile one by one in ten times the time


def steps(x_BTD: jax.Array) -> dict:
  """What `measure` returns, for the two positions of the article."""
  read = by_hand(Attention, config(), READ)(x_BTD)
  adding = by_hand(Block, config(), inside('attention', READ))(x_BTD, NO_TAPS)[0]
  two_heads = config(num_heads=2)
  concatenated = by_hand(Attention, two_heads, READ | THREE_TO_ONE)(x_BTD)
  attention = inside('attention', {**READ, **THREE_TO_ONE, 'output/kernel': A_MINUS_B_AND_B})
  update = by_hand(Attention, two_heads, {**READ, **THREE_TO_ONE, 'output/kernel': A_MINUS_B_AND_B})(x_BTD)
  after_attention = by_hand(Block, two_heads, attention)(x_BTD, NO_TAPS)[0]
  whole = by_hand(Block, two_heads, attention | inside('feed_forward', Q_MINUS_P))
  first, second = by_hand(Attention, config(), READ).value(x_BTD)[0]
  hidden = jax.nn.relu(by_hand(FeedForward, config(), Q_MINUS_P).up(after_attention))
  streams = {
    'has': x_BTD, 'read': read, 'added': adding, 'concatenated': concatenated, 'update': update,
    'after_attention': after_attention, 'hidden': hidden, 'after_block': whole(x_BTD, NO_TAPS)[0],
  }  # fmt: skip
  return {
    **{name: value[0, 1] for name, value in streams.items()},
    'one_head_needs': (jnp.array([1.5, 0.75]) - second) / (first - second),  # a first + (1 - a) second = (3/2, 3/4)
    **branch_at_zero(x_BTD),
    'without_relu': two_linear_maps_against_one(),
    'four_heads': by_hand(Attention, config(num_heads=4, head_dim=2), {}).output.kernel[...].shape,
    **inputs_doubled(x_BTD),
    **backward(),
  }


def branch_at_zero(x_BTD: jax.Array) -> dict:
  """What leaves a block whose branches are zero, by wiring."""
  wirings = {
    'zero_added': config(),
    'zero_replaced': config(attention_residual=0.0),
    'zero_pre': config(norm_placement='pre'),
    'zero_post': config(norm_placement='post', norm='layer'),
  }
  return {name: by_hand(Block, wiring, {})(x_BTD, NO_TAPS)[0][0, 1] for name, wiring in wirings.items()}


def two_linear_maps_against_one() -> jax.Array:
  """The largest difference between the feed-forward's two maps, with no ReLU between, and their product."""
  ff = by_hand(FeedForward, config(), Q_MINUS_P)
  one = Linear(2, 2, use_bias=False, dtype='float32')
  one.kernel[...] = ff.up.kernel[...] @ ff.down.kernel[...]
  points = jax.random.normal(jax.random.key(0), (1, 100, 2))
  return jnp.max(jnp.abs(ff.down(ff.up(points)) - one(points)))


def inputs_doubled(x_BTD: jax.Array) -> dict:
  """Attention logits of the two heads at inputs 2 X over those at X: bare, and under RMSNorm."""
  weights = inside(
    'attention', READ | {'query/kernel': [[0.3, 0.5], [0.7, -0.4]], 'key/kernel': [[0.2, 0.6], [1.0, 0.1]]}
  )
  ratios = {}
  for name, placement in (('doubled', 'none'), ('doubled_under_norm', 'pre')):
    block = by_hand(Block, config(num_heads=2, norm_placement=placement), weights)
    norm = block.attention_norm or (lambda x: x)
    once, twice = (_logits(block.attention, norm(x)) for x in (x_BTD, 2 * x_BTD))
    ratios[name] = jnp.max(twice / once)
  return ratios


def _logits(attention: Attention, x_BTD: jax.Array) -> jax.Array:
  q_BTHK, k_BTHK, _ = attention.queries_keys_values(x_BTD)
  return jnp.einsum('bthk,bshk->bhts', q_BTHK, k_BTHK)


def backward() -> dict:
  """The gradient that enters the feed-forward for the output gradient (1, 0), and its two parts by the taps."""
  ff = by_hand(Block, config(), inside('feed_forward', Q_MINUS_P))  # attention at zero: its sublayer passes x on
  u_BTD = jnp.array([[[0.75, 1.75]]])
  _, pull = jax.vjp(lambda x, taps: ff(x, taps)[0], u_BTD, NO_TAPS)
  gradient, taps = pull(jnp.array([[[1.0, 0.0]]]))
  return {'gradient': gradient[0, 0], 'gradient_parts': taps[1]}


def draw(measured: Measured) -> Figure:
  """The stream of position 2 in the plane."""
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
  axes.plot([rx], [ry], 'D', color=GREY, ms=5, gid='what one head reads')
  axes.annotate(
    f'what it reads: ({rx:g}, {ry:g})', (rx, ry), (6, 4), textcoords='offset points', fontsize=8, color=GREY
  )
  axes.set(xlabel='first coordinate', ylabel='second coordinate', xlim=(-0.15, 2.6), ylim=(0.3, 2.1))
  axes.set_aspect('equal')
  return figure


REPRODUCTION = Reproduction(
  claim='One position of width 2 through one block, every number by hand.',
  source='The article, the worked example',
  expected=(
    exactly('has', 'position 2 has', (0, 1)),
    exactly('read', 'it reads (2, 0) and (0, 1) with weights 1/2, 1/2', (1, 0.5)),
    exactly('added', 'what it read, added back', (1, 1.5)),
    exactly('zero_replaced', 'branch at zero, replacing', (0, 0)),
    exactly('zero_added', 'branch at zero, added', (0, 1)),
    exactly('one_head_needs', 'weight on position 1 that (3/2, 3/4) asks of one head', (0.75, 0.25)),
    exactly('concatenated', 'two heads, weights 3/4 and 1/4', (1.5, 0.75), 1e-6),
    exactly('update', 'output projection (A - B, B)', (0.75, 0.75), 1e-6),
    exactly('after_attention', 'added back', (0.75, 1.75), 1e-6),
    exactly('hidden', 'feed-forward: h = relu(q - p)', (1,), 1e-6),
    exactly('after_block', 'h added to the first coordinate', (1.75, 1.75), 1e-6),
    at_most('without_relu', 'without the ReLU: two maps minus their product', 1e-6),
    exactly('four_heads', '4 heads reading 2 numbers each: 8 numbers, projected to 2', (8, 2)),
    exactly('doubled', 'inputs times 2: attention logits times', 4, 1e-6),
    exactly('doubled_under_norm', 'the same under RMSNorm', 1, 1e-5),
    exactly('zero_pre', 'both branches zero, Pre-Norm', (0, 1)),
    exactly('zero_post', 'both branches zero, Post-LN: LayerNorm of x', (-1, 1), 1e-5),
    exactly('gradient', 'backward: g = (1, 0) becomes g + J^T g', (0, 1)),
    exactly('gradient_parts', '|skip|^2, |branch|^2 and their product', (1, 2, -1)),
  ),
  seconds=2,
  draw=draw,
  caption=(
    'The residual stream of position 2 through one block: from $x_2$ attention takes it to $u_2$, the feed-forward to '
    '$y_2$. Dashed: one head that reads both positions with equal weights, added back.'
  ),
  measure=measure,
)
