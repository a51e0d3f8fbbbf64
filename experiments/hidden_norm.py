"""How large is the residual stream after l blocks at initialisation, under Post-LN, Pre-LN and sandwich norm?

Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, lemma 2; Kim et al. 2025, Peri-LN.
Command: python reproduce.py --only=hidden_norm
Time: 12 seconds.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lab.core.reproduction import Measured, Reproduction, between, exactly
from lab.figures.figure_style import VARIANT_COLOURS, new_figure
from lab.reproduce.model_parts import block_with_params, residual_streams
from lab.reproduce.theorem_setting import theorem_config, with_uniform_attention
from model import ModelConfig, init

PLACEMENTS: tuple[str, ...] = ('pre', 'post', 'sandwich')


def measure(d_model: int, positions: int, num_layers: int, seeds: int) -> dict:
  """|x|^2/d of the stream before every block and after the last one: mean over positions, by placement and seed.

  Under Post-LN also |x|^2/d of the input of the feed-forward's norm, by layer.
  """
  keys = jax.random.split(jax.random.key(0), seeds)
  configs = {placement: theorem_config(placement, num_layers, d_model) for placement in PLACEMENTS}
  sizes = {
    placement: jax.jit(jax.vmap(functools.partial(size_by_layer, config, positions)))(keys)
    for placement, config in configs.items()
  }
  post_before = jax.jit(jax.vmap(functools.partial(norm_input_by_layer, configs['post'], positions)))(keys)
  return {
    'size': sizes,
    'post_before': post_before,
    'post_before_mean': jnp.mean(post_before, 1),
    'post_after': [jnp.min(sizes['post'][:, 1:]), jnp.max(sizes['post'][:, 1:])],
    'pre_8': sizes['pre'][:, 8],
    'pre_32': sizes['pre'][:, 32],
    'sandwich_8': sizes['sandwich'][:, 8],
  }


def blocks_and_input(config: ModelConfig, positions: int, key: jax.Array) -> tuple[dict, jax.Array]:
  """Initial parameters of the blocks, with uniform attention, and a Gaussian input."""
  blocks = with_uniform_attention(init(config, key)['blocks'])
  return blocks, jax.random.normal(jax.random.fold_in(key, 1), (1, positions, config.d_model))


def size_by_layer(config: ModelConfig, positions: int, key: jax.Array) -> jax.Array:
  """Mean of |x|^2/d over positions, (L + 1,)."""
  return jnp.mean(jnp.square(residual_streams(config, *blocks_and_input(config, positions, key))), (1, 2, 3))


def norm_input_by_layer(config: ModelConfig, positions: int, key: jax.Array) -> jax.Array:
  """Under Post-LN: mean of |u + feed_forward(u)|^2/d, the input of the feed-forward's norm, by layer, (L,)."""
  blocks, x_BTD = blocks_and_input(config, positions, key)
  inputs_LBTD = residual_streams(config, blocks, x_BTD)[:-1]

  def norm_input(params, x_BTD):
    block = block_with_params(config, params)
    u_BTD = block.attention_connection.norm(x_BTD + block.attention(x_BTD))
    return jnp.mean(jnp.square(u_BTD + block.feed_forward(u_BTD)))

  return jax.vmap(norm_input)(blocks, inputs_LBTD)


def draw(measured: Measured) -> Figure:
  """Means over seeds, with the published bounds of Pre-LN as a band and the published values of the others as lines."""
  figure = new_figure(3.1)
  axes = figure.add_subplot()
  blocks = np.arange(len(measured['size']['pre'][0]))
  axes.fill_between(blocks, 1 + blocks / 2, 1 + 1.5 * blocks, color=VARIANT_COLOURS['pre'], alpha=0.12, lw=0)
  axes.plot(blocks, 1 + 2 * blocks, ':', color=VARIANT_COLOURS['sandwich'], lw=1, gid='sandwich: 1 + 2 l')
  axes.axhline(1.5, ls=':', color=VARIANT_COLOURS['post'], lw=1, gid='post, before the norm: 3/2')
  drawn = {'Pre-LN': ('pre', measured['size']['pre'], 0), 'sandwich': ('sandwich', measured['size']['sandwich'], 0),
           'Post-LN': ('post', measured['size']['post'], 0),
           'Post-LN, before its last norm': ('post', measured['post_before'], 1)}  # fmt: skip
  for name, (placement, values, first) in drawn.items():
    mean = np.array(values).mean(0)
    line = '--' if first else '-'
    axes.plot(first + np.arange(len(mean)), mean, line, color=VARIANT_COLOURS[placement], lw=1.5, label=name, gid=name)
  axes.set(xlabel='blocks l', ylabel='mean square of the stream, $|x|^2/d$', yscale='log')
  figure.legend(*axes.get_legend_handles_labels(), loc='outside lower center', ncols=2)
  return figure


REPRODUCTION = Reproduction(
  claim='The residual stream grows linearly with depth under Pre-LN and sandwich norm, but not under Post-LN.',
  source='Xiong et al. 2020, lemma 2; Kim et al. 2025, Peri-LN, section 3',
  expected=(
    exactly('post_before_mean', 'Post-LN, before the last norm: mean |x|^2/d over layers', 1.5, 0.1, over_seeds=True),
    exactly('post_after', 'Post-LN, after a block: smallest and largest |x|^2/d', (1, 1), 1e-4),
    between('pre_8', 'Pre-LN, after 8 blocks: |x|^2/d', 1 + 8 / 2, 1 + 3 * 8 / 2, over_seeds=True),
    between('pre_32', 'Pre-LN, after 32 blocks: |x|^2/d', 1 + 32 / 2, 1 + 3 * 32 / 2, over_seeds=True),
    exactly('sandwich_8', 'sandwich, after 8 blocks: |x|^2/d (1 + 2 l)', 17, 1, over_seeds=True),
  ),
  seconds=12,
  draw=draw,
  caption=(
    'Mean of |x|^2/d over positions and seeds, after l blocks at initialisation: one head, every matrix d x d, Xavier '
    'initialisation, uniform attention, Gaussian inputs. Grey: published bounds of Pre-LN; dotted: 1 + 2 l, and 3/2.'
  ),
  measure=measure,
  settings={'d_model': 128, 'positions': 32, 'num_layers': 32, 'seeds': 64},
  full={'d_model': 512, 'positions': 128, 'seeds': 128},
)
