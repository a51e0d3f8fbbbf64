"""Do all positions converge to one vector with depth, with attention alone, a skip path, or a feed-forward?

Dong, Cordonnier & Loukas 2021, Attention is not all you need.
Command: python reproduce.py --only=rank_collapse
Time: 8 seconds.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lab.core.reproduction import Measured, Reproduction, at_least, at_most
from lab.figures.figure_style import BLACK, COLOURS, new_figure
from lab.reproduce.model_parts import map_params, residual_streams
from model import ModelConfig, init

MODELS = {  # name: (residual scale of attention, residual scale of the feed-forward, whether it is active)
  'attention': (0.0, 1.0, False),
  'attention, feed-forward': (0.0, 0.0, True),
  'attention, skip': (1.0, 1.0, False),
  'attention, skip, feed-forward': (1.0, 1.0, True),
}
STYLES = dict(zip(MODELS, ((COLOURS[0], 'o'), (COLOURS[1], 's'), (COLOURS[2], 'D'), (BLACK, '^')), strict=True))
NORMS: dict[str, str] = {'no norm': 'none', 'Pre-Norm': 'pre'}


def measure(num_layers: int, d_model: int, num_heads: int, positions: int, seeds: int) -> dict:
  """Relative residual norm r before every block and after the last one, (seeds, layers + 1), by model and norm."""
  keys = jax.random.split(jax.random.key(0), seeds)
  sizes = {'num_layers': num_layers, 'd_model': d_model, 'num_heads': num_heads}
  initialise = jax.jit(jax.vmap(functools.partial(kernels_and_inputs, rank_config('none', **sizes), positions)))
  kernels, x_BTD = initialise(keys)  # shared by all models: initial parameters depend only on path, layer and shape
  gains = {name: {'gain': jnp.ones((seeds, num_layers, d_model))} for name in ('attention_norm', 'feed_forward_norm')}
  r: dict = {}
  for norm, placement in NORMS.items():
    blocks = kernels if placement == 'none' else kernels | gains
    for model, (attention, feed_forward, active) in MODELS.items():
      config = rank_config(placement, attention_residual=attention, feed_forward_residual=feed_forward, **sizes)
      r[f'{model}, {norm}'] = jax.jit(jax.vmap(functools.partial(residual_by_layer, config, active)))(blocks, x_BTD)
  alone, with_feed_forward = r['attention, no norm'], r['attention, feed-forward, no norm']
  return {
    'r': r,
    'alone_3': alone[:, 3],
    'speeding_up': jnp.log(alone[:, 2] / alone[:, 1]) / jnp.log(alone[:, 1] / alone[:, 0]),
    'feed_forward_slows': jnp.log10(with_feed_forward[:, 2] / alone[:, 2]),
    'skip_keeps': jnp.stack([value[:, 12] for name, value in r.items() if 'skip' in name], 1),
  }


def rank_config(placement: str, **changes) -> ModelConfig:
  """The setting of the paper: no mask, no position encoding."""
  return ModelConfig(
    connection=placement, feed_forward='relu', causal=False, position='none', init_depth_scale=False, **changes
  )


def kernels_and_inputs(config: ModelConfig, positions: int, key: jax.Array) -> tuple[dict, jax.Array]:
  """Initial parameters of the blocks, and a Gaussian input."""
  return init(config, key)['blocks'], jax.random.normal(jax.random.fold_in(key, 1), (1, positions, config.d_model))


def residual_by_layer(config: ModelConfig, active: bool, blocks: dict, x_BTD: jax.Array) -> jax.Array:
  """Relative residual norm of the stream, (L + 1,); the feed-forward is 0 unless it is `active`."""
  if not active:
    blocks = map_params(blocks, lambda path, kernel: 0 * kernel if path == 'feed_forward/down/kernel' else kernel)
  return jax.vmap(relative_residual)(residual_streams(config, blocks, x_BTD)[:, 0])


def relative_residual(x_TD: jax.Array) -> jax.Array:
  """|X - 1 m^T| / |X| with m the mean over positions and |A| = sqrt(|A|_1 |A|_inf); section 2.1 of the paper."""

  def norm(a):
    return jnp.sqrt(jnp.max(jnp.sum(jnp.abs(a), 0)) * jnp.max(jnp.sum(jnp.abs(a), 1)))

  return norm(x_TD - jnp.mean(x_TD, 0)) / norm(x_TD)


def draw(measured: Measured) -> Figure:
  """One panel without norm and one with; geometric means over seeds."""
  figure = new_figure(2.9)
  both = figure.subplots(1, 2, sharey=True)
  for axes, norm in zip(both, NORMS, strict=True):
    for model, (colour, marker) in STYLES.items():
      r = np.array(measured['r'][f'{model}, {norm}'])
      mean = np.exp(np.log(np.where(r > 0, r, np.nan)).mean(0))  # 0 cannot be plotted on a logarithmic axis
      axes.plot(mean, '-', marker=marker, ms=3, color=colour, lw=1.2, label=model, gid=model)
    axes.set(title=norm, xlabel='layer', yscale='log', ylim=(3e-8, 2))
  both[0].set_ylabel('relative residual norm')
  figure.legend(*both[0].get_legend_handles_labels(), loc='outside lower center', ncols=2)
  return figure


REPRODUCTION = Reproduction(
  claim='Attention without skips collapses to rank 1 doubly exponentially; a feed-forward slows this, skips stop it.',
  source='Dong et al. 2021, Attention is not all you need, theorems and figure 2, at initialisation, without a mask',
  expected=(
    at_most('alone_3', 'attention alone: r after layer 3', 1e-5, over_seeds=True),
    at_least('speeding_up', 'attention alone: decrease of log r in layer 2 over that in layer 1', 1.5, over_seeds=True),
    at_least('feed_forward_slows', 'log10 of r after layer 2 with feed-forward over r without', 0, over_seeds=True),
    at_least('skip_keeps', 'with skips: r after layer 12, by model', 0.05, over_seeds=True),
  ),
  # Without a norm the logits grow until the softmax picks one position. With skip and feed-forward, r after 12 layers
  # is 0.171 on average, and a relative change of 3e-7 in the input moves it to anywhere between 0.169 and 0.173.
  drift=0.03,
  seconds=8,
  draw=draw,
  caption=(
    'Relative residual norm |X - 1 m|/|X| of the stream, m the mean over positions: 0 if all positions are equal. '
    'Geometric mean over seeds, at initialisation, Gaussian inputs, no mask. Float32 rounding ends the decrease near '
    '1e-7.'
  ),
  measure=measure,
  settings={'num_layers': 12, 'd_model': 64, 'num_heads': 4, 'positions': 32, 'seeds': 16},
  full={'num_layers': 48, 'd_model': 256, 'num_heads': 8, 'positions': 128, 'seeds': 64},
)  # fmt: skip
