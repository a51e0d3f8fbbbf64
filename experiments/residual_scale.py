"""How does a residual scale a in every sublayer change the gradient on the skip path?

He et al. 2016, Identity Mappings in Deep Residual Networks, section 3, equation 8.
Command: python reproduce.py --only=residual_scale
Time: 28 seconds.
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lab.core.reproduction import Measured, Reproduction, at_most, exactly
from lab.figures.figure_style import COLOURS, new_figure
from lab.reproduce.model_parts import map_params, residual_streams
from model import ModelConfig, apply, zero_taps
from model.initialisation import BRANCH_OUTPUTS
from model.transformer import param_shapes

PLACEMENTS: tuple[str, ...] = ('pre', 'sandwich', 'none')
ZERO_KERNELS = tuple(f'blocks/{name}/kernel' for name in BRANCH_OUTPUTS)
MARKERS = {0.9: 's', 0.5: 'D'}  # by residual scale
TOKENS_BT = jnp.arange(16)[None]


def measure(d_model: int, num_layers: int, scales: tuple[float, ...]) -> dict:
  """The gradient S sublayers below the output of the stack, over that at the output, with zero branches.

  Returns:
    `ratio`: of the norms at the gradient taps, (placement, scale, S); `exact`: the largest |J^T g - a^S g| over a stack
    of six blocks, for scales with which float32 products are exact; `loss_gradient`: at the input of models of three
    depths, relative to the first.
  """
  norms = np.array([
    [tap_norms(scaled_config(placement, scale, num_layers, d_model)) for scale in scales] for placement in PLACEMENTS
  ])  # fmt: skip
  ratio = norms / norms[..., :1]
  expected = np.array(scales)[:, None] ** np.arange(2 * num_layers + 1)
  inexact = scales.index(0.9)
  at_input = [tap_norms(scaled_config('pre', 0.9, depth, d_model))[-1] for depth in (3, 6, 12)]
  return {
    'ratio': ratio,
    'exact': max(largest_error(scaled_config(p, a, 6, d_model)) for p in PLACEMENTS for a in (1.0, 0.5, 0.0)),
    'twelve': ratio[:, scales.index(0.5), 12],
    'relative': np.max(np.abs(ratio[:, inexact] / expected[inexact] - 1)),
    'loss_gradient': np.array(at_input) / at_input[0],
  }


def scaled_config(placement: str, scale: float, num_layers: int, d_model: int) -> ModelConfig:
  """The config of a model with this residual scale in every sublayer."""
  return ModelConfig(
    vocab_size=16, num_layers=num_layers, d_model=d_model, connection=placement, attention_residual=scale,
    feed_forward_residual=scale,
  )  # fmt: skip


def params_with_zero_branches(config: ModelConfig):
  """Parameters with gains of 1, zeros in the last kernel of each branch, and random values elsewhere.

  The random values come from NumPy, which needs no compilation.
  """

  def fill(path: str, leaf):
    if path in ZERO_KERNELS or path.endswith('gain'):
      return np.full(leaf.shape, float(path.endswith('gain')), np.float32)
    rng = np.random.default_rng(list(path.encode()))  # so that embedding and head are the same at every depth
    scale = 1 if path.startswith('embedding') else config.d_model**-0.5
    return rng.normal(size=leaf.shape, scale=scale).astype(np.float32)

  return map_params(param_shapes(config), fill)


def tap_norms(config: ModelConfig) -> np.ndarray:
  """Gradient norms of a random linear function of the logits, from the output of the stack to its input, (2 L + 1,)."""
  weights_BTV = jax.random.normal(jax.random.key(1), (*TOKENS_BT.shape, config.vocab_size))

  @jax.jit
  @jax.grad
  def gradient(taps, params):
    return jnp.sum(weights_BTV * apply(config, params, TOKENS_BT, taps)[0])

  taps = gradient(zero_taps(config), params_with_zero_branches(config))
  taps = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), taps)
  skip, branch, inner = taps['blocks'].reshape(-1, 3)[::-1].T
  return np.sqrt(np.append(taps['output'][0], np.maximum(0, skip + branch + 2 * inner)))


def largest_error(config: ModelConfig) -> float:
  """The largest |J^T g - a^S g| for a random gradient g at the output of the stack, S = 2 L."""

  @jax.jit
  def pull_back(x_BTD, g_BTD, blocks):
    return jax.vjp(lambda x: residual_streams(config, blocks, x)[-1], x_BTD)[1](g_BTD)[0]

  x_BTD, g_BTD = jax.random.normal(jax.random.key(2), (2, *TOKENS_BT.shape, config.d_model))
  gradient_BTD = pull_back(x_BTD, g_BTD, params_with_zero_branches(config)['blocks'])
  return float(jnp.max(jnp.abs(gradient_BTD - config.attention_residual ** (2 * config.num_layers) * g_BTD)))


def draw(measured: Measured) -> Figure:
  """The ratio against the number of sublayers: measured points on the lines a^S."""
  figure = new_figure(2.8)
  axes = figure.add_subplot()
  ratio = np.array(measured['ratio'])[PLACEMENTS.index('pre')]
  sublayers = np.arange(ratio.shape[1])
  for colour, (scale, marker), values in zip(COLOURS, MARKERS.items(), ratio, strict=False):
    axes.plot(sublayers, scale**sublayers, color=colour, lw=1, gid=f'{scale:g}^S')
    axes.plot(sublayers, values, marker, color=colour, ms=4, gid=f'measured, a = {scale:g}', label=f'a = {scale:g}')
  axes.set(xlabel='sublayers S below the output', ylabel='gradient relative to the output', yscale='log')
  axes.set_xticks(sublayers[::4])
  axes.legend(loc='lower left')
  return figure


REPRODUCTION = Reproduction(
  claim='A residual scale a in every sublayer multiplies the skip gradient by a^S over S sublayers.',
  source='He et al. 2016, Identity Mappings in Deep Residual Networks, equation 8',
  expected=(
    exactly('exact', 'a = 1, 0.5, 0; S = 12; each placement: largest |J^T g - a^S g|', 0),
    exactly('twelve', 'ratio at the taps for a = 0.5, S = 12: pre, sandwich, none', (0.5**12,) * 3, 1e-9),
    at_most('relative', 'a = 0.9, S = 0 to 24: largest relative difference from a^S', 1e-6),
    exactly('loss_gradient', 'a = 0.9: loss gradient at the input, 6, 12, 24 sublayers, final norm', (1, 1, 1), 1e-3),
  ),
  seconds=28,
  draw=draw,
  caption=(
    'Norm of the gradient S sublayers below the output of the stack, relative to that at the output, with zero '
    'branches, under Pre-Norm. Points: measured at the gradient taps; lines: a^S. a = 1 gives exactly 1, a = 0 exactly '
    '0. The gradient of the loss at the input does not decrease with a if a final norm follows, since N(c x) = N(x).'
  ),
  measure=measure,
  settings={'d_model': 32, 'num_layers': 12, 'scales': (0.9, 0.5)},
)
