"""How much does noise on all weights change the output of the stack, as a function of depth?

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
from lab.reproduce.model_parts import layer_norm, residual_streams
from lab.reproduce.seed_curves import plot_seeds_and_mean, set_depth_axis
from model import ModelConfig, init

PLACEMENTS: dict[str, str] = {'post': 'Post-LN', 'pre': 'Pre-LN'}


def measure(num_layers: int, d_model: int, num_heads: int, positions: int, noise: float, seeds: int) -> dict:
  """Variance of the output change over noise^2, (seeds, depths), by placement, and its growth with depth.

  Every weight is multiplied by 1 + noise * N(0, 1). The output of the stack is normalised by LayerNorm (as it already
  is under Post-LN), so that its own variance is 1. The first L layers of a deep model serve as the model of L layers:
  the initial parameters of a layer do not depend on the depth of the model.
  """
  keys = jax.random.split(jax.random.key(0), seeds)
  depths = [2**k for k in range(2, num_layers.bit_length())]
  variance = {}
  for placement in PLACEMENTS:
    config = ModelConfig(
      num_layers=num_layers, d_model=d_model, num_heads=num_heads, norm='layer', connection=placement,
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
    'pre_logarithmic': r_squared(np.log(depths), variance['pre']) - r_squared(np.array(depths), variance['pre']),
    'ratio': variance['post'][:, -1] / variance['pre'][:, -1],
  }


def output_change(config: ModelConfig, positions: int, noise: float, key: jax.Array) -> jax.Array:
  """Mean squared change of the normalised output over noise^2 at every depth, (L + 1,); one seed."""
  blocks = init(config, key)['blocks']
  x_BTD = jax.random.normal(jax.random.fold_in(key, 1), (1, positions, config.d_model))
  leaves, structure = jax.tree.flatten(blocks)
  keys = jax.tree.unflatten(structure, list(jax.random.split(jax.random.fold_in(key, 2), len(leaves))))
  noisy = jax.tree.map(lambda leaf, key: leaf * (1 + noise * jax.random.normal(key, leaf.shape)), blocks, keys)
  norm = layer_norm(config.d_model)
  before, after = (norm(residual_streams(config, params, x_BTD)) for params in (blocks, noisy))
  return jnp.mean(jnp.square(after - before), (1, 2, 3)) / noise**2


def r_squared(x: np.ndarray, values: jax.Array) -> float:
  """The squared correlation of x with the mean of `values` over seeds."""
  return float(np.corrcoef(x, np.asarray(values).mean(0))[0, 1] ** 2)


def draw(measured: Measured) -> Figure:
  """Variance of the output change against depth. Thin lines: seeds; thick: means."""
  figure = new_figure(2.8)
  axes = figure.add_subplot()
  for placement, name in PLACEMENTS.items():
    plot_seeds_and_mean(axes, measured['depths'], measured['variance'][placement], name, VARIANT_COLOURS[placement])
  axes.set(xlabel='layers L', ylabel='variance of the output change\n(relative to squared noise)', yscale='log')
  set_depth_axis(axes, measured['depths'])
  axes.legend(loc='upper left')
  return figure


REPRODUCTION = Reproduction(
  claim='Noise on all weights changes the output with variance O(L) under Post-LN, but O(log L) under Pre-LN.',
  source='Liu et al. 2020, Admin, theorem 2 and figure 4',
  expected=(
    at_most('post_exponent', 'Post-LN: exponent of the variance in L (upper bound 1)', 1.1, over_seeds=True),
    at_most('pre_exponent', 'Pre-LN: exponent of the variance in L (upper bound 0)', 0.5, over_seeds=True),
    at_least('steeper', 'exponent of Post-LN minus that of Pre-LN', 0.2, over_seeds=True),
    at_least('pre_logarithmic', 'Pre-LN: r^2 against log L minus r^2 against L', 0),
    at_least('ratio', 'variance of Post-LN over that of Pre-LN at the largest depth', 2, over_seeds=True),
  ),
  seconds=15,
  draw=draw,
  caption=(
    'Mean squared change of the output after LayerNorm when every weight is multiplied by 1 + e N(0, 1), over e^2; at '
    'initialisation without depth scale, Gaussian inputs. Thin lines: seeds.'
  ),
  measure=measure,
  settings={
    'num_layers': 64, 'd_model': 64, 'num_heads': 4, 'positions': 16, 'noise': 0.01, 'seeds': 32,
  },
  full={'num_layers': 256, 'd_model': 256, 'positions': 64, 'seeds': 64},
)  # fmt: skip
