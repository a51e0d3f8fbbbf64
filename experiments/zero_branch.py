"""What does a block return if both branches are zero: its input, the normalised input, or zero?

Command: python reproduce.py --only=zero_branch
Time: 2 seconds.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from lab.core.reproduction import Measured, Reproduction, at_least, at_most, exactly
from lab.figures.figure_style import GREY, VARIANT_COLOURS, new_figure
from lab.reproduce.model_parts import NO_TAPS, layer_norm, module_with_weights
from model import ModelConfig
from model.block import Block

BOTH = {'attention_residual': 0.0, 'feed_forward_residual': 0.0}
IDENTITIES = ('pre', 'sandwich', 'res_post', 'none', 'parallel', 'rezero')
BLOCKS: dict[str, dict[str, Any]] = {  # `x + dropped`: without the skip path of one or both sublayers
  'pre': {},
  'sandwich': {'connection': 'sandwich'},
  'res_post': {'connection': 'res_post'},
  'none': {'connection': 'none'},
  'parallel': {'parallel': True},
  'rezero': {'rezero': True},
  'post': {'connection': 'post'},
  'deepnorm': {'connection': 'deepnorm'},
  'pre, first x + dropped': {'attention_residual': 0.0},
  'pre, both x + dropped': BOTH,
  'none, both x + dropped': {'connection': 'none', **BOTH},
  'post, both x + dropped': {'connection': 'post', **BOTH},
}


def measure(d_model: int, positions: int, input_scale: float) -> dict:
  """|y|/|x| of each block for Gaussian x of standard deviation `input_scale`, and distances of y to x, N(x) and 0."""
  x_BTD = input_scale * jax.random.normal(jax.random.key(0), (1, positions, d_model))
  outputs = jax.jit(functools.partial(block_outputs, d_model))(x_BTD)
  norm = layer_norm(d_model)
  return {
    'ratio': {name: jnp.linalg.norm(y) / jnp.linalg.norm(x_BTD) for name, y in outputs.items()},
    'from_input': jnp.stack([jnp.max(jnp.abs(outputs[name] - x_BTD)) for name in IDENTITIES]),
    'post_from_norm': jnp.max(jnp.abs(outputs['post'] - norm(x_BTD))),
    'deepnorm_from_norm': jnp.max(jnp.abs(outputs['deepnorm'] - norm(x_BTD))),
    'dropped': jnp.stack([jnp.max(jnp.abs(outputs[name])) for name in BLOCKS if 'dropped' in name]),
    'post_from_input': jnp.linalg.norm(outputs['post'] - x_BTD) / jnp.linalg.norm(x_BTD),
  }


def block_outputs(d_model: int, x_BTD: jax.Array) -> dict[str, jax.Array]:
  """The output of each block with zero branches."""
  configs = {name: ModelConfig(d_model=d_model, norm='layer', **changes) for name, changes in BLOCKS.items()}
  return {name: module_with_weights(Block, config, {})(x_BTD, NO_TAPS)[0] for name, config in configs.items()}


def draw(measured: Measured) -> Figure:
  """One bar for each block."""
  figure = new_figure(2.9)
  axes = figure.add_subplot()
  names = list(BLOCKS)
  colours = [VARIANT_COLOURS[_variant(name)] for name in names]
  axes.barh(names, [measured['ratio'][name] for name in names], color=colours, height=0.6)
  for row, name in enumerate(names):
    axes.text(measured['ratio'][name] + 0.02, row, f'{measured["ratio"][name]:.3g}', va='center', fontsize=8)
  axes.axvline(1, color=GREY, lw=0.8, ls=(0, (4, 3)))
  axes.invert_yaxis()
  axes.grid(visible=False, axis='y')
  axes.set(xlabel='norm of the output over norm of the input', xlim=(0, 1.2))
  return figure


def _variant(name: str) -> str:
  """The variant whose colour a block is drawn in."""
  return 'no_residual' if 'dropped' in name else 'pre' if name in IDENTITIES else 'post'


REPRODUCTION = Reproduction(
  claim='With zero branches Pre-Norm returns x (0 without its first skip path), and Post-LN the LayerNorm of x.',
  source='The article, a block whose branches are zero; He et al. 2016; Bachlechner et al. 2020',
  expected=(
    exactly('from_input', f'largest |y - x|: {", ".join(IDENTITIES)}', (0,) * len(IDENTITIES)),
    at_most('post_from_norm', 'post: largest |y - LayerNorm(x)|', 1e-5),
    at_most('deepnorm_from_norm', 'deepnorm: largest |y - LayerNorm(x)|', 1e-5),
    exactly('dropped', 'largest |y|: without the first skip path (pre), or both (pre, none, post)', (0,) * 4),
    at_least('post_from_input', 'post: |y - x|/|x| for x of standard deviation 3', 0.5),
  ),
  seconds=2,
  draw=draw,
  caption=(
    'Norm of the output of a block with zero branches over the norm of its Gaussian input of standard deviation 3. '
    'Black: input returned exactly; vermilion: normalised; green: without skip path.'
  ),
  measure=measure,
  settings={'d_model': 64, 'positions': 32, 'input_scale': 3.0},
)
