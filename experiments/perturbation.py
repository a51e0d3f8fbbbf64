"""By how much does noise on all weights change the output of the stack, as it gets deeper?

Liu et al. 2020, Understanding the Difficulty of Training Transformers (Admin), section 4.
Command: python reproduce.py --only=perturbation
Time: 15 seconds.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lab.analysis.statistics import power_law_exponent
from lab.core.reproduction import Measured, Reproduction, at_least, at_most
from lab.figures.figure_style import VARIANT_COLOURS, new_figure
from lab.reproduce.hand_set_weights import streams
from model import ModelConfig, init
from model.config import NormPlacement
from model.norm import LayerNorm

PLACEMENTS: dict[NormPlacement, str] = {'post': 'Post-LN', 'pre': 'Pre-LN'}


def measure(num_layers: int, d_model: int, num_heads: int, positions: int, noise: float, seeds: int) -> dict:
  """Variance of the output's change over noise^2, (seeds, depths), by placement; and how it grows.

  Every weight is multiplied by 1 + noise * N(0, 1). The output is that of the stack under LayerNorm, which Post-LN ends
  with anyway, so that its own variance is 1. The first L layers of a deep model are a model of L layers: initial values
  of a layer depend on its place alone.
  """
  keys = jax.random.split(jax.random.key(0), seeds)
  depths = [2**k for k in range(2, num_layers.bit_length())]
  variance = {}
  for placement in PLACEMENTS:
    config = ModelConfig(
      num_layers=num_layers, d_model=d_model, num_heads=num_heads, norm='layer', norm_placement=placement,
      feed_forward='relu', position='none', init_depth_scale=False,
    )  # fmt: skip
    change = jax.jit(jax.vmap(functools.partial(output_change, config, positions, noise)))(keys)
    variance[placement] = change[:, np.array(depths)]
  return {
    'depths': depths,
    'variance': variance,
    'post_exponent': power_law_exponent(depths, variance['post']),
    'pre_exponent': power_law_exponent(depths, variance['pre']),
    'steeper': power_law_exponent(depths, variance['post']) - power_law_exponent(depths, variance['pre']),
    'pre_logarithmic': straightness(np.log(depths), variance['pre']) - straightness(np.array(depths), variance['pre']),
    'ratio': variance['post'][:, -1] / variance['pre'][:, -1],
  }


def output_change(config: ModelConfig, positions: int, noise: float, key: jax.Array) -> jax.Array:
  """Mean squared change of the normed output over noise^2 at every depth, (L + 1,), for one seed."""
  blocks = init(config, key)['blocks']
  x_BTD = jax.random.normal(jax.random.fold_in(key, 1), (1, positions, config.d_model))
  leaves, structure = jax.tree.flatten(blocks)
  keys = jax.tree.unflatten(structure, list(jax.random.split(jax.random.fold_in(key, 2), len(leaves))))
  noisy = jax.tree.map(lambda leaf, key: leaf * (1 + noise * jax.random.normal(key, leaf.shape)), blocks, keys)
  norm = LayerNorm(config.d_model, use_bias=False)
  norm.gain[...] = jnp.ones(config.d_model)
  before, after = (norm(streams(config, which, x_BTD)) for which in (blocks, noisy))
  return jnp.mean(jnp.square(after - before), (1, 2, 3)) / noise**2


def straightness(x: np.ndarray, values: jax.Array) -> float:
  """The squared correlation of x with the mean over seeds: 1 on a straight line."""
  return float(np.corrcoef(x, np.asarray(values).mean(0))[0, 1] ** 2)


def draw(measured: Measured) -> Figure:
  """Variance against depth: seeds thin, their mean thick."""
  figure = new_figure(2.8)
  axes = figure.add_subplot()
  for placement, name in PLACEMENTS.items():
    values, colour = np.array(measured['variance'][placement]), VARIANT_COLOURS[placement]
    for seed, row in enumerate(values):
      axes.plot(measured['depths'], row, color=colour, lw=0.6, alpha=0.35, gid=f'{name}, seed {seed}')
    axes.plot(measured['depths'], values.mean(0), '-o', ms=3, color=colour, lw=1.5, label=name, gid=f'{name}, mean')
  axes.set(xlabel='layers L', ylabel='variance of the change of the output\n(per squared noise)', yscale='log')
  axes.set_xscale('log', base=2)
  axes.set_xticks(measured['depths'], [str(depth) for depth in measured['depths']])
  axes.legend(loc='upper left')
  return figure


REPRODUCTION = Reproduction(
  claim='Noise on all weights changes the output with variance O(L) under Post-LN, O(log L) under Pre-LN.',
  source='Liu et al. 2020, Admin, theorem 2 and figure 4',
  expected=(
    at_most('post_exponent', 'Post-LN: exponent of the variance in L, of an upper bound of 1', 1.1, over_seeds=True),
    at_most('pre_exponent', 'Pre-LN: the same, of an upper bound of 0', 0.5, over_seeds=True),
    at_least('steeper', 'Post-LN minus Pre-LN, of the same seed', 0.2, over_seeds=True),
    at_least('pre_logarithmic', 'Pre-LN: straighter against log L than against L (difference of r^2)', 0),
    at_least('ratio', 'Post-LN over Pre-LN at the largest depth', 2, over_seeds=True),
  ),
  seconds=15,
  draw=draw,
  caption=(
    'Mean squared change of the output under LayerNorm when every weight is multiplied by 1 + e N(0, 1), over e^2; at '
    'initial values without depth scale, Gaussian inputs. Thin: seeds.'
  ),
  measure=measure,
  settings={
    'num_layers': 64, 'd_model': 64, 'num_heads': 4, 'positions': 16, 'noise': 0.01, 'seeds': 32,
  },
  full={'num_layers': 256, 'd_model': 256, 'positions': 64, 'seeds': 64},
)  # fmt: skip
