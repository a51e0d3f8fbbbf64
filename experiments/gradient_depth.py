"""How does the gradient at initialisation depend on the depth of the model, and on the layer?

Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, theorem 1 and figure 3.
Command: python reproduce.py --only=gradient_depth
Time: 16 seconds.

The theorem bounds the gradient of the loss at one position. If the loss is averaged over more positions, the gradient
of Post-LN grows slightly with depth: the exponent is +0.13 [+0.10, +0.16] for eight sequences of 32 positions
under a causal mask.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from lab.analysis.statistics import power_law_exponent
from lab.core.reproduction import Measured, Reproduction, at_least, between, exactly
from lab.figures.figure_style import VARIANT_COLOURS, new_figure, set_log_y_axis
from lab.reproduce.seed_curves import plot_seeds_and_mean, set_depth_axis
from lab.reproduce.theorem_setting import theorem_config, with_uniform_attention
from model import ModelConfig, apply, init

PLACEMENTS: dict[str, str] = {'post': 'Post-LN', 'pre': 'Pre-LN'}
PROFILE_DEPTH = 8  # layers of the model whose gradients are plotted by layer


def measure(depths: tuple[int, ...], d_model: int, batch: int, positions: int, seeds: int) -> dict:
  """Frobenius norms of the gradient of the mean loss at initialisation, by placement and seed.

  Returns:
    `last`, (seeds, depths): for the feed-forward output kernel of the last layer; `profile`, (seeds, layers): for the
    feed-forward input kernel of every layer, in a model of `PROFILE_DEPTH` layers.
  """
  deepest = theorem_config('pre', max(depths), d_model)
  initialise = jax.jit(functools.partial(init, deepest))
  measure_norms = {
    (placement, depth): jax.jit(functools.partial(norms_by_layer, theorem_config(placement, depth, d_model)))
    for placement, depth in itertools.product(PLACEMENTS, depths)
  }
  norms: dict = {model: [] for model in measure_norms}
  for key in jax.random.split(jax.random.key(0), seeds):
    params, shape = initialise(key), (2, batch, positions)
    tokens_BT, targets_BT = jax.random.randint(jax.random.fold_in(key, 1), shape, 0, deepest.vocab_size)
    for (placement, depth), norms_of in measure_norms.items():
      norms[placement, depth].append(norms_of(shallower(params, placement, depth), tokens_BT, targets_BT))
  last = {p: np.array([[one['down'][-1] for one in norms[p, depth]] for depth in depths]).T for p in PLACEMENTS}
  profile = {p: np.array([one['up'] for one in norms[p, PROFILE_DEPTH]]) for p in PLACEMENTS}
  return {
    'depths': depths,
    'last': last,
    'profile': profile,
    **{f'{placement}_exponent': power_law_exponent(depths, last[placement]) for placement in PLACEMENTS},
    **{f'{placement}_rise': profile[placement][:, -1] / profile[placement][:, 0] for placement in PLACEMENTS},
  }


def shallower(params: dict, placement: str, depth: int) -> dict:
  """The parameters of a model of `depth` layers, taken from a deep Pre-LN model; attention is uniform.

  The initial parameters of a layer do not depend on the depth of the model.
  """
  blocks = jax.tree.map(lambda leaf: leaf[:depth], with_uniform_attention(params['blocks']))
  others = {name: part for name, part in params.items() if name != 'final_norm' or placement == 'pre'}
  return others | {'blocks': blocks}


def norms_by_layer(
  config: ModelConfig, params: dict, tokens_BT: jax.Array, targets_BT: jax.Array
) -> dict[str, jax.Array]:
  """Norm of the batch-mean gradient of each feed-forward kernel: {'up': (L,), 'down': (L,)}."""

  def loss(feed_forward):
    logits_BTV, _ = apply(config, params | {'blocks': params['blocks'] | {'feed_forward': feed_forward}}, tokens_BT)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits_BTV, targets_BT))

  gradient = jax.grad(loss)(params['blocks']['feed_forward'])
  return {name: jnp.linalg.norm(gradient[name]['kernel'], axis=(1, 2)) for name in ('up', 'down')}


def draw(measured: Measured) -> Figure:
  """Left: gradient of the last layer against depth; right: gradient by layer. Thin lines: seeds; thick: means."""
  figure = new_figure(2.7)
  left, right = figure.subplots(1, 2)
  for placement, name in PLACEMENTS.items():
    colour = VARIANT_COLOURS[placement]
    plot_seeds_and_mean(left, measured['depths'], measured['last'][placement], name, colour)
    plot_seeds_and_mean(right, range(1, PROFILE_DEPTH + 1), measured['profile'][placement], name, colour)
  left.set(
    xlabel='layers L', ylabel='gradient of the last layer\n(nats per unit,\nnorm of the batch mean)', yscale='log'
  )
  set_depth_axis(left, measured['depths'])
  set_log_y_axis(left)
  right.set(
    xlabel=f'layer (of {PROFILE_DEPTH})',
    ylabel='gradient by layer\n(nats per unit,\nnorm of the batch mean)',
    ylim=(0, None),
  )
  figure.legend(*left.get_legend_handles_labels(), loc='outside lower center', ncols=2)
  return figure


REPRODUCTION = Reproduction(
  claim='The gradient of the last layer does not depend on depth under Post-LN, and scales as 1/sqrt(L) under Pre-LN.',
  source='Xiong et al. 2020, theorem 1 and figure 3',
  expected=(
    exactly('post_exponent', 'Post-LN: exponent in L of the gradient of the last layer', 0, 0.15, over_seeds=True),
    exactly('pre_exponent', 'Pre-LN: exponent in L of the gradient of the last layer', -0.5, 0.1, over_seeds=True),
    at_least('post_rise', 'Post-LN: gradient of the last layer over that of the first', 1, over_seeds=True),
    between('pre_rise', 'Pre-LN: last layer over first (0.8 in figure 3)', 0.5, 1.5, over_seeds=True),
  ),
  seconds=16,
  draw=draw,
  caption=(
    'Frobenius norm of the batch-mean gradient at initialisation, in the setting of the theorem. Left: feed-forward '
    'output kernel of the last layer against depth; right: feed-forward input kernel by layer. Thin lines: seeds. The '
    'profile published for the decoder of an encoder-decoder model is steeper.'
  ),
  measure=measure,
  settings={'depths': (4, 8, 16, 32, 64), 'd_model': 128, 'batch': 2, 'positions': 32, 'seeds': 16},
  full={'d_model': 512, 'batch': 8, 'positions': 128, 'seeds': 32},
)
