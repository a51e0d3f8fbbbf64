"""A residual scale a in every sublayer multiplies the skip gradient by a to the number of sublayers.

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
from lab.reproduce.hand_set_weights import streams, with_weights
from model import ModelConfig, apply, zero_taps
from model.config import NormPlacement
from model.transformer import param_shapes

PLACEMENTS: tuple[NormPlacement, ...] = ('pre', 'sandwich', 'none')
BRANCH_OUTPUTS = ('blocks/attention/output/kernel', 'blocks/feed_forward/down/kernel')
MARKERS = {0.9: 's', 0.5: 'D'}  # by a
TOKENS_BT = jnp.arange(16)[None]


def measure(d_model: int, num_layers: int, scales: tuple[float, ...]) -> dict:
  """Branches at zero: the gradient S sublayers below the stack's output over that at the output.

  Returns:
    `ratio` of norms by the gradient taps, (placement, scale, S); `exact`: the largest |J^T g - a^S g| over a stack of
    six blocks, for the scales that float32 multiplies by exactly; `loss_gradient` at the input of three depths.
  """
  ratio = np.array([
    [norms / norms[0] for norms in (tap_norms(model(placement, scale, num_layers, d_model)) for scale in scales)]
    for placement in PLACEMENTS
  ])  # fmt: skip
  expected = np.array(scales)[:, None] ** np.arange(2 * num_layers + 1)
  inexact = scales.index(0.9)
  at_input = [tap_norms(model('pre', 0.9, depth, d_model))[-1] for depth in (3, 6, 12)]
  return {
    'ratio': ratio,
    'exact': max(off_a_to_the_s(model(p, a, 6, d_model)) for p in PLACEMENTS for a in (1.0, 0.5, 0.0)),
    'twelve': ratio[:, scales.index(0.5), 12],
    'relative': np.max(np.abs(ratio[:, inexact] / expected[inexact] - 1)),
    'loss_gradient': np.array(at_input) / at_input[0],
  }


def model(placement: NormPlacement, scale: float, num_layers: int, d_model: int) -> ModelConfig:
  """A model with this residual scale in every sublayer."""
  return ModelConfig(
    vocab_size=16, num_layers=num_layers, d_model=d_model, norm_placement=placement, attention_residual=scale,
    feed_forward_residual=scale,
  )  # fmt: skip


def with_branches_at_zero(config: ModelConfig):
  """Parameters with gains of 1, the last kernel of each branch at 0, and all else random; NumPy compiles nothing."""

  def fill(path: str, leaf):
    if path in BRANCH_OUTPUTS or path.endswith('gain'):
      return np.full(leaf.shape, float(path.endswith('gain')), np.float32)
    rng = np.random.default_rng(list(path.encode()))  # embedding and head are the same at every depth
    return rng.normal(size=leaf.shape, scale=1 if path.startswith('embedding') else config.d_model**-0.5).astype(
      np.float32
    )

  return with_weights(param_shapes(config), fill)


def tap_norms(config: ModelConfig) -> np.ndarray:
  """Norms of the gradient of a random weighing of the logits, from the stack's output down to its input, (2 L + 1,)."""
  weights_BTV = jax.random.normal(jax.random.key(1), (*TOKENS_BT.shape, config.vocab_size))

  @jax.jit
  @jax.grad
  def gradient(taps, params):
    return jnp.sum(weights_BTV * apply(config, params, TOKENS_BT, taps)[0])

  taps = gradient(zero_taps(config), with_branches_at_zero(config))
  taps = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), taps)
  skip, branch, both = taps['blocks'].reshape(-1, 3)[::-1].T
  return np.sqrt(np.append(taps['output'][0], np.maximum(0, skip + branch + 2 * both)))


def off_a_to_the_s(config: ModelConfig) -> float:
  """The largest |J^T g - a^S g| for random g at the output of the stack, S = 2 L."""

  @jax.jit
  def pulled(x_BTD, g_BTD, blocks):
    return jax.vjp(lambda x: streams(config, blocks, x)[-1], x_BTD)[1](g_BTD)[0]

  x_BTD, g_BTD = jax.random.normal(jax.random.key(2), (2, *TOKENS_BT.shape, config.d_model))
  pulled_BTD = pulled(x_BTD, g_BTD, with_branches_at_zero(config)['blocks'])
  return float(jnp.max(jnp.abs(pulled_BTD - config.attention_residual ** (2 * config.num_layers) * g_BTD)))


def draw(measured: Measured) -> Figure:
  """The ratio by the number of sublayers, measured as points on the line a^S."""
  figure = new_figure(2.8)
  axes = figure.add_subplot()
  ratio = np.array(measured['ratio'])[PLACEMENTS.index('pre')]
  sublayers = np.arange(ratio.shape[1])
  for colour, (scale, marker), values in zip(COLOURS, MARKERS.items(), ratio, strict=False):
    axes.plot(sublayers, scale**sublayers, color=colour, lw=1, gid=f'{scale:g}^S')
    axes.plot(sublayers, values, marker, color=colour, ms=4, gid=f'measured, a = {scale:g}', label=f'a = {scale:g}')
  axes.set(xlabel='sublayers S below the output', ylabel='gradient over that at the output', yscale='log')
  axes.set_xticks(sublayers[::4])
  axes.legend(loc='lower left')
  return figure


REPRODUCTION = Reproduction(
  claim='A residual scale a in every sublayer multiplies the skip gradient by a^S over S sublayers.',
  source='He et al. 2016, Identity Mappings in Deep Residual Networks, equation 8',
  expected=(
    exactly('exact', 'a = 1, 0.5 and 0, S = 12, each placement: largest |J^T g - a^S g|', 0),
    exactly('twelve', '0.5^12 by the taps, under pre, sandwich and none', (0.5**12,) * 3, 1e-9),
    at_most('relative', 'a = 0.9, S = 0 to 24: largest relative difference to a^S', 1e-6),
    exactly('loss_gradient', 'a = 0.9: loss gradient below 6, 12 and 24 sublayers and a final norm', (1, 1, 1), 1e-3),
  ),
  seconds=28,
  draw=draw,
  caption=(
    'Norm of the gradient S sublayers below the output of the stack over that at the output, branches at zero, under '
    'Pre-Norm: points measured by the gradient taps, lines a^S; a = 1 gives exactly 1, a = 0 exactly 0. The loss '
    'gradient at the input does not fall with a where a final norm follows, since N(c x) = N(x).'
  ),
  measure=measure,
  settings={'d_model': 32, 'num_layers': 12, 'scales': (0.9, 0.5)},
)
