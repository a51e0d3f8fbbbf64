"""How does the scale of its input affect attention: without a norm, after a norm, and with QK norm?

Command: python reproduce.py --only=input_scale
Time: 5 seconds.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from lab.core.reproduction import Measured, Reproduction, at_least, at_most, exactly
from lab.figures.figure_style import BLACK, COLOURS, new_figure
from lab.reproduce.model_parts import first_block
from model import ModelConfig, init
from model.connections import Site
from model.kernels.plain_attention import attention_weights

SETTINGS: dict[str, dict[str, Any]] = {
  'no norm': {'connection': 'none'},
  'RMSNorm': {'norm': 'rms'},
  'LayerNorm': {'norm': 'layer'},
  'QK norm': {'connection': 'none', 'qk_norm': True},
}
STYLES = dict(
  zip(
    SETTINGS, ((COLOURS[4], 'o', '-'), (BLACK, 's', '-'), (COLOURS[1], 'D', '--'), (COLOURS[0], '^', '-')), strict=True
  )
)


def measure(d_model: int, num_heads: int, positions: int, scales: tuple[float, ...], seeds: int) -> dict:
  """Mean entropy of the attention weights over queries and heads (nats), and largest |logit|, each (seeds, scales)."""
  keys = jax.random.split(jax.random.key(0), seeds)
  measured: dict = {'scales': scales, 'largest_entropy': jnp.mean(jnp.log(jnp.arange(1, positions + 1)))}
  for name, changes in SETTINGS.items():
    config = ModelConfig(num_layers=1, d_model=d_model, num_heads=num_heads, position='none', **changes)
    by_seed = jax.jit(jax.vmap(functools.partial(attention_at_scales, config, positions, jnp.array(scales))))
    measured[f'entropy {name}'], measured[f'logit {name}'] = by_seed(keys)
  one, two = scales.index(1.0), scales.index(2.0)
  logit, entropy = measured['logit no norm'], measured['entropy no norm']
  return {
    **measured,
    'ratio': logit[:, two] / logit[:, one],
    'sharper': entropy[:, 0] - entropy[:, -1],
    **{f'change {name}': _spread(measured[f'logit {name}']) for name in list(SETTINGS)[1:]},
    'bound': jnp.max(measured['logit QK norm']) / (d_model // num_heads) ** 0.5,
  }


def attention_at_scales(
  config: ModelConfig, positions: int, scales: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Entropy and largest |logit| of the first layer's attention for one seed, for a Gaussian input times each scale."""
  block = first_block(config, init(config, key))
  site = Site(jnp.asarray(1), 2 * config.num_layers)
  x_BTD = jax.random.normal(jax.random.fold_in(key, 1), (1, positions, config.d_model))

  def at_scale(scale):
    read_BTD = block.attention_connection.read(scale * x_BTD, site)
    q_BTHK, k_BTHK, _ = block.attention.queries_keys_values(read_BTD)
    weights_BHTS = attention_weights(q_BTHK, k_BTHK, causal=True)
    logits_BHTS = jnp.einsum('bthk,bshk->bhts', q_BTHK, k_BTHK) / config.key_width**0.5
    unmasked_BHTS = jnp.where(jnp.tri(positions, dtype=bool), jnp.abs(logits_BHTS), 0)
    return -jnp.mean(jnp.sum(jax.scipy.special.xlogy(weights_BHTS, weights_BHTS), -1)), jnp.max(unmasked_BHTS)

  return jax.vmap(at_scale)(scales)


def _spread(values: jax.Array) -> jax.Array:
  """The largest relative change over the scales in any seed."""
  return jnp.max(jnp.max(values, 1) / jnp.min(values, 1)) - 1


def draw(measured: Measured) -> Figure:
  """Attention entropy and largest logit against the input scale; means over seeds."""
  figure = new_figure(2.7)
  left, right = figure.subplots(1, 2)
  for name, (colour, marker, line) in STYLES.items():
    for axes, quantity in ((left, 'entropy'), (right, 'logit')):
      mean = jnp.mean(jnp.array(measured[f'{quantity} {name}']), 0)
      axes.plot(measured['scales'], mean, line, marker=marker, ms=3, color=colour, label=name, gid=name)
  left.set(ylabel='attention entropy (nats)', xscale='log', ylim=(0, None))
  right.set(ylabel='largest attention logit', xscale='log', yscale='log')
  for axes in (left, right):
    axes.set_xscale('log', base=2)
    axes.set_xticks(
      measured['scales'], [f'{scale:g}' if scale >= 1 else f'1/{1 / scale:g}' for scale in measured['scales']]
    )
    axes.set_xlabel('input scale')
  figure.legend(*left.get_legend_handles_labels(), loc='outside lower center', ncols=4)
  return figure


REPRODUCTION = Reproduction(
  claim='Doubling the input quadruples the attention logits, unless a norm precedes attention or QK norm is used.',
  source='The article, the size of the residual stream; Wortsman et al. 2023, section 3.1 (QK norm)',
  expected=(
    exactly('ratio', 'no norm: largest logit at input scale 2 over that at 1', 4, 1e-4, over_seeds=True),
    at_least('sharper', 'no norm: drop in entropy from scale 1/8 to 8 (nats)', 1, over_seeds=True),
    at_most('change RMSNorm', 'RMSNorm: largest relative change of the logit over all scales', 1e-3),
    at_most('change LayerNorm', 'LayerNorm: largest relative change of the logit', 1e-3),
    at_most('change QK norm', 'QK norm: largest relative change of the logit', 1e-3),
    at_most('bound', 'QK norm: largest logit over sqrt(head_dim)', 1 + 1e-6),
  ),
  seconds=5,
  draw=draw,
  caption=(
    'Left: mean entropy of the attention weights over queries and heads, under a causal mask; right: largest |logit|; '
    'at initialisation, means over seeds. With RMSNorm, LayerNorm or QK norm, the scale matters only through epsilon.'
  ),
  measure=measure,
  settings={
    'd_model': 64, 'num_heads': 4, 'positions': 32, 'scales': (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0), 'seeds': 8,
  },
)  # fmt: skip
