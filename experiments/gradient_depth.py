"""How does the last layer's gradient depend on depth at initial values, and the gradient on the layer?

Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, theorem 1 and figure 3.
Command: python reproduce.py --only=gradient_depth
Time: 16 seconds.

The theorem bounds the gradient of the loss at one position. Averaged over more of them first, Post-LN's grew a little
with depth: the exponent was +0.13 [+0.10, +0.16] with eight sequences of 32 positions under a causal mask.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from experiments.hidden_norm import UNIFORM, setting
from lab.analysis.statistics import power_law_exponent
from lab.core.reproduction import Measured, Reproduction, at_least, between, exactly
from lab.figures.figure_style import VARIANT_COLOURS, new_figure, set_log_y_axis
from lab.reproduce.hand_set_weights import with_weights
from model import ModelConfig, apply, init
from model.config import NormPlacement

PLACEMENTS: dict[NormPlacement, str] = {'post': 'Post-LN', 'pre': 'Pre-LN'}
PROFILE = 8  # layers of the model whose gradients are shown by layer


def measure(depths: tuple[int, ...], d_model: int, batch: int, positions: int, seeds: int) -> dict:
  """Frobenius norms of the gradient of a mean loss, at initial values, by seed.

  Returns:
    `last`, (seeds, depths): of the last layer's feed-forward output matrix; `profile`, (seeds, layers): of every
    layer's feed-forward input matrix in a model of `PROFILE` layers; each by placement.
  """
  deepest = setting('pre', max(depths), d_model)
  start = jax.jit(functools.partial(init, deepest))
  look = {
    (placement, depth): jax.jit(functools.partial(norms_by_layer, setting(placement, depth, d_model)))
    for placement, depth in itertools.product(PLACEMENTS, depths)
  }
  norms: dict = {which: [] for which in look}
  for key in jax.random.split(jax.random.key(0), seeds):
    params, shape = start(key), (2, batch, positions)
    tokens_BT, targets_BT = jax.random.randint(jax.random.fold_in(key, 1), shape, 0, deepest.vocab_size)
    for (placement, depth), of_layers in look.items():
      norms[placement, depth].append(of_layers(model_of(params, placement, depth), tokens_BT, targets_BT))
  last = {p: np.array([[one['down'][-1] for one in norms[p, depth]] for depth in depths]).T for p in PLACEMENTS}
  profile = {p: np.array([one['up'] for one in norms[p, PROFILE]]) for p in PLACEMENTS}
  return {
    'depths': depths,
    'last': last,
    'profile': profile,
    **{f'{placement}_exponent': power_law_exponent(depths, last[placement]) for placement in PLACEMENTS},
    **{f'{placement}_rise': profile[placement][:, -1] / profile[placement][:, 0] for placement in PLACEMENTS},
  }


def model_of(params: dict, placement: NormPlacement, depth: int) -> dict:
  """The first layers of a deep Pre-LN model, which start as those of a shallow one, with uniform attention."""
  blocks = with_weights(params['blocks'], lambda path, leaf: (leaf if path not in UNIFORM else 0 * leaf)[:depth])
  outside = {name: part for name, part in params.items() if name != 'final_norm' or placement == 'pre'}
  return outside | {'blocks': blocks}


def norms_by_layer(
  config: ModelConfig, params: dict, tokens_BT: jax.Array, targets_BT: jax.Array
) -> dict[str, jax.Array]:
  """The norm of the gradient of each feed-forward matrix, averaged over the batch first: {'up': (L,), 'down': (L,)}."""

  def loss(feed_forward):
    logits_BTV, _ = apply(config, params | {'blocks': params['blocks'] | {'feed_forward': feed_forward}}, tokens_BT)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits_BTV, targets_BT))

  gradient = jax.grad(loss)(params['blocks']['feed_forward'])
  return {name: jnp.linalg.norm(gradient[name]['kernel'], axis=(1, 2)) for name in ('up', 'down')}


def draw(measured: Measured) -> Figure:
  """Left: the last layer against depth; right: by layer. Seeds thin, means thick."""
  figure = new_figure(2.7)
  left, right = figure.subplots(1, 2)
  for placement, name in PLACEMENTS.items():
    colour = VARIANT_COLOURS[placement]
    panels = ((left, measured['depths'], 'last'), (right, range(1, PROFILE + 1), 'profile'))
    for axes, places, quantity in panels:
      values = np.array(measured[quantity][placement])
      for seed, row in enumerate(values):
        axes.plot(places, row, color=colour, lw=0.6, alpha=0.35, gid=f'{name}, seed {seed}')
      axes.plot(places, values.mean(0), '-o', ms=3, color=colour, lw=1.5, label=name, gid=f'{name}, mean')
  left.set(xlabel='layers L', ylabel='gradient of the last layer\n(nats a unit,\nnorm of the batch mean)', yscale='log')
  left.set_xscale('log', base=2)
  left.set_xticks(measured['depths'], [str(depth) for depth in measured['depths']])
  set_log_y_axis(left)
  right.set(
    xlabel=f'layer of {PROFILE}', ylabel='gradient by layer\n(nats a unit,\nnorm of the batch mean)', ylim=(0, None)
  )
  figure.legend(*left.get_legend_handles_labels(), loc='outside lower center', ncols=2)
  return figure


REPRODUCTION = Reproduction(
  claim="The last layer's gradient does not depend on depth under Post-LN, and falls as 1/sqrt(L) under Pre-LN.",
  source='Xiong et al. 2020, theorem 1 and figure 3',
  expected=(
    exactly('post_exponent', "Post-LN: exponent in L of the last layer's gradient", 0, 0.15, over_seeds=True),
    exactly('pre_exponent', 'Pre-LN: the same', -0.5, 0.1, over_seeds=True),
    at_least('post_rise', 'Post-LN: gradient of the last layer over that of the first', 1, over_seeds=True),
    between('pre_rise', 'Pre-LN: the same (0.8 in figure 3)', 0.5, 1.5, over_seeds=True),
  ),
  seconds=16,
  draw=draw,
  caption=(
    'Frobenius norm of the gradient, averaged over the batch first, at initial values in the setting of the theorem. '
    'Left: the feed-forward output matrix of the last layer, by depth; right: the feed-forward input matrix, by layer. '
    'Thin: seeds. The published profile is that of a decoder with an encoder, and steeper.'
  ),
  measure=measure,
  settings={'depths': (4, 8, 16, 32, 64), 'd_model': 128, 'batch': 2, 'positions': 32, 'seeds': 16},
  full={'d_model': 512, 'batch': 8, 'positions': 128, 'seeds': 32},
)
