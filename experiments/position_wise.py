"""The feed-forward sees one position at a time; attention sees them together.

Command: python reproduce.py --only=position_wise
Time: 10 seconds.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lab.core.reproduction import Measured, Reproduction, at_least, at_most, exactly
from lab.figures.figure_style import COLOURS, GREY, new_figure
from lab.reproduce.hand_set_weights import layer
from model import ModelConfig, init

BRANCHES: dict[str, tuple[str, dict[str, Any]]] = {  # name: part of the block, changes of the config
  'feed-forward': ('feed_forward', {}),
  'attention, mask and rotary': ('attention', {}),
  'attention, mask': ('attention', {'position': 'none'}),
  'attention, rotary': ('attention', {'causal': False}),
  'attention, neither': ('attention', {'position': 'none', 'causal': False}),
}


def measure(d_model: int, positions: int, seeds: int) -> dict:
  """By branch f: |f(Px) - P f(x)|/|f(x)| for a permutation P of the positions, and how far one position reaches."""
  keys = jax.random.split(jax.random.key(0), seeds)
  permuted, reached = {}, {}
  for name, (part, changes) in BRANCHES.items():
    config = ModelConfig(num_layers=1, d_model=d_model, **changes)
    permuted[name], reached[name] = jax.jit(jax.vmap(functools.partial(compare, config, part, positions)))(keys)
  return {
    'permuted': permuted,
    'reached': reached,
    'feed_forward': jnp.max(permuted['feed-forward']),
    'attention': permuted['attention, mask and rotary'],
    'attention_mask': permuted['attention, mask'],
    'attention_neither': jnp.max(permuted['attention, neither']),
    'feed_forward_reach': jnp.max(reached['feed-forward']),
    'attention_reach': reached['attention, neither'],
  }


def compare(config: ModelConfig, part: str, positions: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
  """One seed: how far permuting before differs from after, and how much other positions feel a change of the first."""
  block = layer(config, jax.tree.map(lambda leaf: leaf[0], init(config, key)['blocks']))
  branch = getattr(block, part)
  keys = jax.random.split(jax.random.fold_in(key, 1), 3)
  x_BTD = jax.random.normal(keys[0], (1, positions, config.d_model))
  order = jax.random.permutation(keys[1], positions)
  y_BTD = branch(x_BTD)
  moved = branch(x_BTD[:, order]) - y_BTD[:, order]
  changed = branch(x_BTD.at[:, 0].set(jax.random.normal(keys[2], (config.d_model,)))) - y_BTD
  size = jnp.linalg.norm(y_BTD)
  return jnp.linalg.norm(moved) / size, jnp.linalg.norm(changed[:, 1:]) / size


def draw(measured: Measured) -> Figure:
  """A row a branch: seeds as points, for both measures."""
  figure = new_figure(2.4)
  both = figure.subplots(1, 2, sharey=True)
  titles = ('permuting before\nagainst after', 'one position changed:\nfelt by the others')
  for axes, quantity, title in zip(both, ('permuted', 'reached'), titles, strict=True):
    for row, name in enumerate(BRANCHES):
      values = np.array(measured[quantity][name])
      colour = COLOURS[1] if name == 'feed-forward' else COLOURS[0]
      axes.plot(values, row + np.linspace(-0.15, 0.15, len(values)), 'o', color=colour, ms=3, mew=0, gid=name)
    axes.axvline(0, color=GREY, lw=0.8)
    axes.set(title=title, xlabel='relative difference', ylim=(len(BRANCHES) - 0.5, -0.5), xlim=(-0.08, 1.6))
  both[0].set_yticks(range(len(BRANCHES)), list(BRANCHES))
  return figure


REPRODUCTION = Reproduction(
  claim='Permuting the positions before or after the feed-forward gives the same; not so for attention.',
  source='The article, each position alone',
  expected=(
    at_most('feed_forward', 'feed-forward: |f(Px) - P f(x)|/|f(x)|, 0 but for rounding', 1e-6),
    at_least('attention', 'attention with mask and rotary positions', 0.1, over_seeds=True),
    at_least('attention_mask', 'attention with the mask alone', 0.1, over_seeds=True),
    at_most('attention_neither', 'attention with neither: 0 but for rounding, too', 1e-6),
    exactly('feed_forward_reach', 'feed-forward: what others feel of a change at one position', 0),
    at_least('attention_reach', 'attention with neither: the same', 0.01, over_seeds=True),
  ),
  seconds=10,
  draw=draw,
  caption=(
    'Left: |f(Px) - P f(x)|/|f(x)| for a random permutation P of the positions. Without a mask and positions '
    'attention, too, commutes with it: only these tell it the order. Right: how much the output at other positions '
    'changes when one position does, which sets the two branches apart in every case. Points: seeds, at initial values.'
  ),
  measure=measure,
  settings={'d_model': 64, 'positions': 16, 'seeds': 8},
)
