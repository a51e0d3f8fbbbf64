"""Layer 1 asks the same of `like` whatever stands before it; later layers ask in the light of what was read.

A tiny model learns a grammar in which the word after `like` depends on the pronoun: "I often like tea", "They really
like milk". The query at `like` is compared between sentences that differ in the pronoun alone.

Command: python reproduce.py --only=context
Time: 12 seconds.
"""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from lab.core.reproduction import Measured, Reproduction, at_least, exactly
from lab.figures.figure_style import VARIANT_COLOURS, new_figure
from lab.reproduce.hand_set_weights import layer, streams
from model import ModelConfig, apply, init

PRONOUNS = ('I', 'You', 'We', 'They')
ADVERBS = ('really', 'often', 'always')
OBJECTS = ('tea', 'rain', 'bread', 'milk')  # one for each pronoun
WORDS = (*PRONOUNS, *ADVERBS, 'like', *OBJECTS)
LIKE = 2  # its position
SENTENCES = jnp.array([
  [WORDS.index(word) for word in (pronoun, adverb, 'like', OBJECTS[PRONOUNS.index(pronoun)])]
  for pronoun, adverb in itertools.product(PRONOUNS, ADVERBS)
])  # fmt: skip
RESIDUAL: dict[str, dict[str, Any]] = {
  'with residual': {},
  'without residual': {'attention_residual': 0.0, 'feed_forward_residual': 0.0},
}


def measure(num_layers: int, d_model: int, steps: int, learning_rate: float, seeds: int) -> dict:
  """By wiring: query distance at `like` by layer, share of right words after it, and its loss, each by seed."""
  keys = jax.random.split(jax.random.key(0), seeds)
  measured: dict = {}
  for name, changes in RESIDUAL.items():
    config = ModelConfig(
      vocab_size=len(WORDS), num_layers=num_layers, d_model=d_model, num_heads=2, num_positions=LIKE + 1,
      position='learned', **changes,
    )  # fmt: skip
    params = jax.jit(jax.vmap(functools.partial(trained, config, steps, learning_rate)))(keys)
    look = jax.jit(jax.vmap(functools.partial(look_at_like, config)))(params)
    measured |= {f'{quantity} {name}': value for quantity, value in look.items()}
  return {
    **measured,
    'first_layer': [jnp.max(measured[f'distance {name}'][:, 0]) for name in RESIDUAL],
    'second_layer': measured['distance with residual'][:, 1],
    'right': measured['right with residual'],
  }


def trained(config: ModelConfig, steps: int, learning_rate: float, key: jax.Array):
  """Parameters after `steps` steps of Adam on all sentences at once."""
  optimizer = optax.adam(learning_rate)
  params = init(config, key)

  def step(carry, _):
    params, state = carry
    gradient = jax.grad(lambda p: jnp.mean(nats(config, p)))(params)
    updates, state = optimizer.update(gradient, state, params)
    return (optax.apply_updates(params, updates), state), None

  return jax.lax.scan(step, (params, optimizer.init(params)), length=steps)[0][0]


def nats(config: ModelConfig, params) -> jax.Array:
  """The loss of every next word, (sentence, position)."""
  logits_BTV, _ = apply(config, params, SENTENCES[:, :-1])
  return optax.softmax_cross_entropy_with_integer_labels(logits_BTV, SENTENCES[:, 1:])


def look_at_like(config: ModelConfig, params) -> dict[str, jax.Array]:
  """What the trained model does at `like`.

  Returns:
    `distance`, (L,): |q - q'|/|q| over pairs of sentences that differ in the pronoun alone, mean; `right`: the share of
    sentences whose object it predicts; `loss`: in nats at the object.
  """
  tokens_BT = SENTENCES[:, :-1]
  x_BTD = params['embedding']['token'][tokens_BT] + params['embedding']['position'][: LIKE + 1]
  entering_LBTD = streams(config, params['blocks'], x_BTD)[:-1]

  def query_at_like(blocks, x_BTD):
    block = layer(config, blocks)
    return block.attention.query(block.attention_norm(x_BTD))[:, LIKE]

  q_LBD = jax.vmap(query_at_like)(params['blocks'], entering_LBTD)
  q_LPAD = q_LBD.reshape(config.num_layers, len(PRONOUNS), len(ADVERBS), -1)
  apart_LPPA = jnp.linalg.norm(q_LPAD[:, :, None] - q_LPAD[:, None], axis=-1)
  pairs = len(PRONOUNS) * (len(PRONOUNS) - 1) * len(ADVERBS)
  predicted = jnp.argmax(apply(config, params, tokens_BT)[0][:, LIKE], -1)
  return {
    'distance': jnp.sum(apart_LPPA, (1, 2, 3)) / pairs / jnp.mean(jnp.linalg.norm(q_LPAD, axis=-1), (1, 2)),
    'right': jnp.mean(predicted == SENTENCES[:, -1]),
    'loss': jnp.mean(nats(config, params)[:, LIKE]),
  }


def draw(measured: Measured) -> Figure:
  """Query distance by layer, a thin line a seed and a thick one for the mean; beside it the share of right words."""
  figure = new_figure(2.6)
  left, right = figure.subplots(1, 2, width_ratios=[1.6, 1])
  colours = (VARIANT_COLOURS['pre'], VARIANT_COLOURS['no_residual'])
  for row, (name, colour) in enumerate(zip(RESIDUAL, colours, strict=True)):
    distances = np.array(measured[f'distance {name}'])
    layers = np.arange(1, distances.shape[1] + 1)
    for seed, distance in enumerate(distances):
      left.plot(layers, distance, color=colour, lw=0.6, alpha=0.45, gid=f'{name}, seed {seed}')
    left.plot(layers, distances.mean(0), '-o', ms=3, color=colour, lw=1.5, label=name, gid=f'{name}, mean')
    shares = np.array(measured[f'right {name}'])
    right.plot(row + np.linspace(-0.15, 0.15, len(shares)), shares, 'o', color=colour, ms=4, mew=0, gid=name)
  left.set(xlabel='layer', ylabel='distance of queries at "like"\n(share of their length)', ylim=(-0.05, None))
  left.set_xticks(layers)
  right.set(ylabel='right words after "like" (share)', ylim=(-0.05, 1.05), xlim=(-0.6, 1.6))
  right.set_xticks([0, 1], ['with\nresidual', 'without\nresidual'])
  figure.legend(*left.get_legend_handles_labels(), loc='outside lower center', ncols=2)
  return figure


REPRODUCTION = Reproduction(
  claim='The query at "like" is the same in layer 1 whatever the pronoun before it; from layer 2 on it may differ.',
  source='The article, "I like" and "They like"',
  expected=(
    exactly('first_layer', 'distance of queries in layer 1, with and without residual', (0, 0)),
    at_least('second_layer', 'in layer 2, with residual: distance over length', 0.05, over_seeds=True),
    exactly('right', 'right words after "like", with residual', 1, over_seeds=True),
  ),
  seconds=12,
  draw=draw,
  caption=(
    'Left: mean distance of the queries at "like" between sentences that differ in the pronoun alone, over their '
    'length, after training; thin: seeds. Right: the share of sentences whose last word is predicted: without the '
    'residual, too, a branch that has read the pronoun can carry it on.'
  ),
  measure=measure,
  settings={'num_layers': 4, 'd_model': 32, 'steps': 200, 'learning_rate': 3e-3, 'seeds': 5},
  full={'num_layers': 12, 'd_model': 64, 'steps': 1000, 'seeds': 20},
  drift=0.05,
)
