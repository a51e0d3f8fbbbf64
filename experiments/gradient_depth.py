"""How does the gradient of the last layer at initial values go with depth, under Post-LN and Pre-LN?

Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, theorem 1 and figure 3.
Command: python -m experiments.reproduce --only=gradient_depth
Time: 2 minutes.

The batch is one sequence of 32 positions. Averaged over eight sequences before the norm is taken, Post-LN's power was
+0.13 [+0.10, +0.16] over 16 seeds, and with eight sequences of one position -0.01 [-0.04, +0.02] over 8: the bound is
on the gradient of one position, and how those of several add up is not in it.
"""

from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from experiments.by_hand import with_weights
from experiments.figure_style import VARIANT_COLOURS, logarithmic_heights, new_figure
from experiments.hidden_norm import UNIFORM
from experiments.perturbation import exponent
from experiments.reproduction import Measured, Reproduction, at_least, at_most, exactly
from model import ModelConfig, init
from model.config import NormPlacement
from training.config import Config
from training.inspection import inspect

KERNEL = 'grad_norm/feed_forward/down'  # averaged over the batch, then its Frobenius norm, as the paper has it
NAMES: dict[NormPlacement, str] = {'post': 'Post-LN', 'pre': 'Pre-LN'}


def measure(d_model: int, positions: int, sequences: int, vocab_size: int, max_layers: int, seeds: int) -> dict:
  """Gradient norms of every feed-forward's output matrix, by placement; their exponents in depth.

  The inputs are rows of an embedding N(0, 1), the targets are drawn at random: the theorem asks for no more.
  """
  depths = [2**k for k in range(2, max_layers.bit_length())]
  last, profile, stream = {}, {}, {}
  for placement in NAMES:
    by_depth: list[list[dict[str, np.ndarray]]] = []
    for depth in depths:
      setting: dict[str, Any] = {  # the paper's: one head, every matrix d x d, Xavier, no bias
        'vocab_size': vocab_size, 'num_layers': depth, 'd_model': d_model, 'num_heads': 1, 'd_ff': d_model,
        'feed_forward': 'relu', 'norm': 'layer', 'init': 'xavier', 'init_depth_scale': False, 'position': 'none',
      }  # fmt: skip
      config = Config(model=ModelConfig(norm_placement=placement, **setting))
      by_depth.append([one_seed(config, positions, sequences, seed) for seed in range(seeds)])
    last[placement] = np.array([[found[KERNEL][-1] for found in row] for row in by_depth]).T  # (seed, depth)
    profile[placement] = np.array([found[KERNEL] for found in by_depth[1]])  # (seed, layer), of the second depth
    stream[placement] = np.array([found['total'][:, 0] for found in by_depth[1]])
  return {
    'depths': depths,
    'last': last,
    'profile': profile,
    'stream': stream,
    'post_exponent': exponent(depths, last['post']),
    'pre_exponent': exponent(depths, last['pre']),
    'post_last_over_first': profile['post'][:, -1] / profile['post'][:, 0],
    'pre_last_over_first': profile['pre'][:, -1] / profile['pre'][:, 0],
  }


def one_seed(config: Config, positions: int, sequences: int, seed: int) -> dict[str, np.ndarray]:
  """What `inspect` finds of initial values with uniform attention, on random tokens."""
  params = with_weights(
    jax.jit(lambda key: init(config.model, key))(jax.random.key(seed)),
    lambda path, leaf: 0 * leaf if path.removeprefix('blocks/') in UNIFORM else leaf,
  )
  shape = 2, sequences, positions
  inputs, targets = np.random.default_rng(seed).integers(config.model.vocab_size, size=shape, dtype=np.int32)
  return inspect(config, params, {'inputs_BT': inputs, 'targets_BT': targets, 'weights_BT': np.ones(shape[1:], 'f4')})


def draw(measured: Measured) -> Figure:
  """The last layer against depth, every seed a point, with the fitted power; and all layers of one depth."""
  figure = new_figure(2.9)
  left, right = figure.subplots(1, 2)
  depths = np.array(measured['depths'])
  for placement, name in NAMES.items():
    colour = VARIANT_COLOURS[placement]
    last, slopes = np.array(measured['last'][placement]), np.array(measured[f'{placement}_exponent'])
    for norms in last:
      left.plot(depths, norms, '.', color=colour, ms=3, alpha=0.5)
    middle = np.exp(np.log(last).mean())
    fit = middle * (depths / np.exp(np.log(depths).mean())) ** slopes.mean()
    left.plot(depths, fit, color=colour, lw=1.5, label=f'{name}: depth^({slopes.mean():+.2f})')
    profile = np.array(measured['profile'][placement])
    layers = np.arange(1, profile.shape[1] + 1)
    for norms in profile:
      right.plot(layers, norms, color=colour, lw=0.5, alpha=0.3)
    right.plot(layers, profile.mean(0), color=colour, lw=1.5)
  left.set(xscale='log', yscale='log', xlabel='layers in the model')
  left.set_ylabel('gradient of the last\nfeed-forward output matrix\n(nats a unit,\nbatch mean, then norm)')
  left.set_xticks(depths, [str(depth) for depth in depths])
  left.xaxis.set_minor_locator(NullLocator())
  logarithmic_heights(left)
  right.set(ylim=(0, None), xlabel=f'layer of {len(layers)}', ylabel='that of each layer')
  figure.legend(*left.get_legend_handles_labels(), loc='outside lower center', ncols=2)
  return figure


REPRODUCTION = Reproduction(
  claim='At initial values the gradient of the last layer falls as 1/sqrt(depth) under Pre-LN, and does not under '
  'Post-LN, where it is larger in the last layers than in the first.',
  source='Xiong et al. 2020, theorem 1 and figure 3',
  expected=(
    exactly('post_exponent', 'Post-LN: power of depth, last layer', 0, 0.1, over_seeds=True),
    exactly('pre_exponent', 'Pre-LN: power of depth, last layer', -0.5, 0.1, over_seeds=True),
    at_least('post_last_over_first', 'Post-LN: last over first of 8 layers', 1, over_seeds=True),
    at_most('pre_last_over_first', 'Pre-LN: last over first of 8 layers', 1, over_seeds=True),
  ),
  seconds=120,
  draw=draw,
  caption=(
    'Norm of the gradient of feed-forward output matrices at initial values, averaged over the batch first: one head, '
    'every matrix d x d, Xavier, uniform attention, Gaussian inputs, random targets. Left: of the last layer, against '
    'the number of layers; points: seeds; lines: the fitted powers. Right: of every layer of the 8-layer model. '
    'The profile over layers at initial values does not tell which variant trains.'
  ),
  measure=measure,
  settings={'d_model': 128, 'positions': 32, 'sequences': 1, 'vocab_size': 256, 'max_layers': 64, 'seeds': 16},
  full={'d_model': 512, 'positions': 128, 'max_layers': 128},
)
