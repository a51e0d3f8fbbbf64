"""Does a branch process each position separately? The feed-forward does, attention does not.

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
from lab.reproduce.model_parts import first_block
from model import ModelConfig, init

BRANCHES: dict[str, tuple[str, dict[str, Any]]] = {  # name: (part of the block, changes to the config)
  'feed-forward': ('feed_forward', {}),
  'attention, mask and rotary': ('attention', {}),
  'attention, mask': ('attention', {'position': 'none'}),
  'attention, rotary': ('attention', {'causal': False}),
  'attention, neither': ('attention', {'position': 'none', 'causal': False}),
}


def measure(d_model: int, positions: int, seeds: int) -> dict:
  """Two measurements of each branch f, by seed.

  Returns:
    `permuted`: |f(Px) - P f(x)|/|f(x)| for a permutation P of the positions; `reached`: the relative change of the
    output at all other positions when the first position changes.
  """
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
  """The two measurements for one seed."""
  branch = getattr(first_block(config, init(config, key)), part)
  keys = jax.random.split(jax.random.fold_in(key, 1), 3)
  x_BTD = jax.random.normal(keys[0], (1, positions, config.d_model))
  order = jax.random.permutation(keys[1], positions)
  y_BTD = branch(x_BTD)
  permuted = branch(x_BTD[:, order]) - y_BTD[:, order]
  changed = branch(x_BTD.at[:, 0].set(jax.random.normal(keys[2], (config.d_model,)))) - y_BTD
  size = jnp.linalg.norm(y_BTD)
  return jnp.linalg.norm(permuted) / size, jnp.linalg.norm(changed[:, 1:]) / size


def draw(measured: Measured) -> Figure:
  """One row per branch and one panel per measurement: seeds as points."""
  figure = new_figure(2.4)
  both = figure.subplots(1, 2, sharey=True)
  titles = ('permuted before\nor after the branch', 'one position changed:\neffect on the others')
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
  claim='The feed-forward commutes with a permutation of the positions; attention does not.',
  source='The article, each position alone',
  expected=(
    at_most('feed_forward', 'feed-forward: |f(Px) - P f(x)|/|f(x)| (0 up to rounding)', 1e-6),
    at_least('attention', 'attention with mask and rotary embedding', 0.1, over_seeds=True),
    at_least('attention_mask', 'attention with the mask only', 0.1, over_seeds=True),
    at_most('attention_neither', 'attention with neither (0 up to rounding)', 1e-6),
    exactly('feed_forward_reach', 'feed-forward: effect of one position on the others', 0),
    at_least('attention_reach', 'attention with neither: effect of one position on the others', 0.01, over_seeds=True),
  ),
  seconds=10,
  draw=draw,
  caption=(
    'Left: |f(Px) - P f(x)|/|f(x)| for a random permutation P of the positions. Without mask and position encoding, '
    'attention commutes with P too: only these two make it depend on the order. Right: relative change of the output '
    'at all other positions when one position changes, which separates the two branches in every case. Points: seeds, '
    'at initialisation.'
  ),
  measure=measure,
  settings={'d_model': 64, 'positions': 16, 'seeds': 8},
)
