"""What does each residual design do to the gradient before training?

The gradient in the residual state at initialisation along the stack, its two paths, and how it scales with depth.
Without the depth factor of initial values (init_depth_scale), which would hide what a design does with depth. Designs
that start as Pre-Norm have its gradient; without any norm (`none`), the activations of 96 layers overflow.

Command: python reproduce.py --only=design_gradients
Time: 2.5 minutes, nearly all of it compilation.

Reproduced, with 96 layers of width 64. Gain of the skip path in each block, exponent in L of the gradient at the first
sublayer, and largest over smallest gradient along the stack:

                         skip    exponent   largest / smallest
  pre                    1.000   +0.67      26
  keel                   0.998   +0.00      1.2
  post                   0.618   +3.14      5.8e4
  attention_residuals    0.992   +0.57      11
  skipless               0       +0.00      1.01
  hybrid_norm            0.535   +5.87      1.8e9
  res_post               1.000   +5.59      6.7e8
  gated_highway          0.772   -5.16      3.7e7

The skip path of Post-LN loses 38% in each block, not half; but its branches more than replace it: with SwiGLU the whole
gradient grows towards the first layer. Only a highway gate loses it.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from lab.analysis.statistics import power_law_exponent
from lab.core.reproduction import Measured, Reproduction, at_most, exactly
from lab.figures.figure_style import BLACK, COLOURS, GREY, new_figure
from model import ModelConfig, apply, init, zero_taps
from model.connections.hyper_connections import composite_gain
from training.measures import gradient_measures

DESIGNS: dict[str, dict] = {
  'pre': {},
  'post': {'connection': 'post'},
  'sandwich': {'connection': 'sandwich'},
  'res_post': {'connection': 'res_post'},
  'deepnorm': {'connection': 'deepnorm'},
  'layer_scale': {'connection': 'layer_scale'},
  'layer_norm_scaling': {'connection': 'layer_norm_scaling'},
  'completep': {'connection': 'completep'},
  'mix_ln': {'connection': 'mix_ln'},
  'b2t': {'connection': 'b2t'},
  'hybrid_norm': {'connection': 'hybrid_norm'},
  'keel': {'connection': 'keel'},
  'residual_dual': {'connection': 'residual_dual'},
  'siamese_norm': {'connection': 'siamese_norm'},
  'gated_gru': {'connection': 'gated_residual'},
  'gated_highway': {'connection': 'gated_residual:gate=highway'},
  'value_residual': {'connection': 'value_residual'},
  'hyper_connections': {'connection': 'hyper_connections'},
  'manifold_hc': {'connection': 'manifold_hyper_connections'},
  'manifold_hc, lite': {'connection': 'manifold_hyper_connections:lite=true'},
  'attention_residuals': {'connection': 'attention_residuals'},
  'skipless': {'connection': 'skipless'},
  'DyT': {'norm': 'dyt'},
}
STREAMS = ('hyper_connections', 'manifold_hc', 'manifold_hc, lite')
PARTS = {'total': BLACK, 'skip': COLOURS[1], 'branch': COLOURS[0]}
COLUMNS = 4
# Each program runs once: less optimisation saves more compilation than it costs in execution.
QUICK = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}


def measure(
  designs: tuple[str, ...], depths: tuple[int, ...], d_model: int, batch: int, positions: int, seeds: int
) -> dict:
  """The gradient of the mean loss in the residual state.

  Returns:
    For each design, at the inputs of the 2 L sublayers of the deepest model, `<design>_total`, `_skip` and `_branch`,
    (seeds, 2 L), norms relative to the gradient at the output of the stack, and `<design>_cosine` of the two paths.
    `<design>_exponent`, (seeds,): the exponent in L of `total` at the first sublayer. `<design>_skip_gain`, (seeds,):
    the norm of `skip` over that of the gradient at the output of the sublayer, the product over the two sublayers of
    a block, its geometric mean over blocks. `<design>_spread`: the largest `total` over the smallest.
    For designs with n streams, `<design>_composite_gain`, (seeds,): the larger gain of `composite_gain` through the
    whole stack. And `attention_residuals_evenness`, (seeds,): its spread over that of `pre`.
  """
  measured: dict = {'designs': designs, 'depths': depths}
  for name in designs:
    first = []
    for depth in depths:
      config = ModelConfig(num_layers=depth, d_model=d_model, init_depth_scale=False, **DESIGNS[name])
      profile = profiles(config, batch, positions, seeds, mixes=name in STREAMS)
      first.append(profile['total'][:, 0])
    total, skip = profile['total'], profile['skip']
    after = np.concatenate([total[:, 1:], np.ones((seeds, 1))], 1)
    with np.errstate(divide='ignore'):
      gain = np.exp(2 * np.log(skip / after).mean(1))
    measured |= {f'{name}_{part}': values for part, values in profile.items()}
    measured |= {
      f'{name}_exponent': power_law_exponent(depths, np.array(first).T),
      f'{name}_skip_gain': gain,
      f'{name}_spread': total.max(1) / total.min(1),
    }
  measured['attention_residuals_evenness'] = measured['attention_residuals_spread'] / measured['pre_spread']
  return measured


def profiles(config: ModelConfig, batch: int, positions: int, seeds: int, mixes: bool) -> dict[str, np.ndarray]:
  """The two paths of the gradient by sublayer, (seeds, 2 L), relative to that at the output of the stack.

  Args:
    config: the model.
    batch: the number of sequences of random tokens.
    positions: the length of a sequence.
    seeds: how many initial values and batches.
    mixes: whether the design has mixing matrices: then also their `composite_gain`, (seeds,).
  """

  def products(key):
    params, shape = init(config, key), (2, batch, positions)
    tokens_BT, targets_BT = jax.random.randint(jax.random.fold_in(key, 1), shape, 0, config.vocab_size)

    def loss(taps):
      logits_BTV, stats = apply(config, params, tokens_BT, taps, full_stats=mixes)
      return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits_BTV, targets_BT)), stats

    return jax.grad(loss, has_aux=True)(zero_taps(config))

  program = jax.jit(functools.partial(jax.lax.map, products), compiler_options=QUICK)
  taps, stats = jax.device_get(program(jax.random.split(jax.random.key(0), seeds)))
  found: dict[str, list] = {}
  for seed in range(seeds):
    one = gradient_measures(jax.tree.map(lambda tap, seed=seed: tap[seed], taps))
    for part in PARTS:
      found.setdefault(part, []).append(one[part].reshape(-1) / one['output'])
    found.setdefault('cosine', []).append(one['cosine'].reshape(-1))
    if mixes:
      mixing = np.stack([stats['mean']['mixing'][name][seed] for name in ('attention', 'feed_forward')], 1)
      gains = composite_gain(jnp.asarray(mixing.reshape(-1, *mixing.shape[2:])))
      found.setdefault('composite_gain', []).append(float(max(gain[-1] for gain in gains)))
  return {part: np.array(values) for part, values in found.items()}


def draw(measured: Measured) -> Figure:
  """For each design, above: the gradient and its two paths along the stack; below: the cosine of the paths."""
  designs = measured['designs']
  rows = math.ceil(len(designs) / COLUMNS)
  figure = new_figure(1.2 * rows + 0.4)
  figure.set_layout_engine('constrained', h_pad=0.01, w_pad=0.02, hspace=0, wspace=0)
  grid = figure.add_gridspec(rows, COLUMNS)
  for place, name in enumerate(designs):
    row, column = divmod(place, COLUMNS)
    panel = grid[row, column].subgridspec(2, 1, height_ratios=(3, 1))
    above, below = figure.add_subplot(panel[0]), figure.add_subplot(panel[1])
    for part, colour in PARTS.items():
      _plot_band(above, measured[f'{name}_{part}'], colour, part, name)
    _plot_band(below, measured[f'{name}_cosine'], GREY, 'cosine', name)
    above.set_title(name.replace('_', ' '), fontsize=7, pad=2)
    exponent = round(np.mean(measured[f'{name}_exponent']), 2) + 0.0  # not -0.00
    above.text(0.96, 0.95, f'$L^{{{exponent:+.2f}}}$', transform=above.transAxes, fontsize=7, ha='right', va='top')
    above.set(yscale='log', xlim=(0, 1))
    low, high = above.get_ylim()
    above.set_ylim(min(low, 0.1), max(high, 10))
    above.yaxis.set_major_locator(LogLocator(numticks=4))
    above.yaxis.set_minor_locator(NullLocator())
    above.set_xticks((0, 0.5, 1), [])
    last = place + COLUMNS >= len(designs)
    below.set(xlim=(0, 1), ylim=(-1, 1))
    below.set_xticks((0, 0.5, 1), ('0', '0.5', '1') if last else [])
    below.set_yticks((-1, 0, 1), ('-1', '0', '1') if column == 0 else [])
    for axes in (above, below):
      axes.tick_params(labelsize=6, pad=1, length=2)
    if last:
      below.set_xlabel('depth', fontsize=7)
    if column == 0:
      above.set_ylabel('gradient', fontsize=7)
      below.set_ylabel('cosine', fontsize=7)
  figure.legend(*figure.axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=3)
  return figure


def _plot_band(axes: Axes, values: list, colour: str, part: str, design: str) -> None:
  """The mean over seeds, in a band from the smallest to the largest; a norm of 0 is not drawn."""
  array = np.array(values, float)
  if part != 'cosine':
    array[array == 0] = np.nan
  depth = np.arange(array.shape[1]) / array.shape[1]
  axes.fill_between(depth, array.min(0), array.max(0), color=colour, alpha=0.25, lw=0, gid=f'{design}: {part}, seeds')
  axes.plot(depth, array.mean(0), color=colour, lw=1, label=part, gid=f'{design}: {part}, mean')


REPRODUCTION = Reproduction(
  claim=(
    'Before training, Keel keeps the gradient of all 96 layers, whereas the skip path of Post-LN loses about half of '
    'it in each block; attention residuals spread it more evenly than Pre-Norm.'
  ),
  source='Keel (2601.19895); attention residuals (2603.15031); manifold-constrained hyper-connections (2512.24880)',
  expected=(
    exactly('post_skip_gain', 'Post-LN: gain of the skip path in each block', 0.5, 0.15, over_seeds=True),
    exactly('keel_skip_gain', 'Keel: gain of the skip path in each block', 1, 0.01, over_seeds=True),
    exactly('keel_exponent', 'Keel: exponent in L of the gradient at the first sublayer', 0, 0.05, over_seeds=True),
    at_most(
      'attention_residuals_evenness', 'attention residuals: largest over smallest gradient, over that of Pre-Norm', 1,
      over_seeds=True,
    ),
    exactly(
      'manifold_hc_composite_gain', 'manifold-constrained: gain of the streams through all mixing matrices', 1, 1e-3,
      over_seeds=True,
    ),
  ),
  seconds=150,
  draw=draw,
  caption=(
    'Gradient of the loss in the residual state at initialisation, at the inputs of the sublayers from the first '
    '(depth 0) to the last of 96 layers, relative to that at the output of the stack: total, and its parts by the skip '
    'path and the branch; below, their cosine. Bands: smallest to largest of the seeds. In each panel: the power of '
    'the number of layers L with which the gradient at the first sublayer scales.'
  ),
  measure=measure,
  settings={'designs': tuple(DESIGNS), 'depths': (4, 96), 'd_model': 64, 'batch': 2, 'positions': 32, 'seeds': 4},
  full={'depths': (4, 12, 36, 96), 'd_model': 256, 'batch': 8, 'positions': 128, 'seeds': 8},
)  # fmt: skip
