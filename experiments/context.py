"""Does the attention query at a word depend on the words before it?

A tiny model learns a grammar in which the word after `like` depends on the pronoun: "I often like tea", "They really
like milk". The queries at `like` are compared between sentences that differ only in the pronoun: in layer 1 they are
equal, in later layers they may differ.

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
from lab.reproduce.model_parts import block_with_params, residual_streams
from lab.reproduce.seed_curves import plot_seeds_and_mean
from model import ModelConfig, apply, init

PRONOUNS = ('I', 'You', 'We', 'They')
ADVERBS = ('really', 'often', 'always')
OBJECTS = ('tea', 'rain', 'bread', 'milk')  # one for each pronoun
WORDS = (*PRONOUNS, *ADVERBS, 'like', *OBJECTS)
LIKE = 2  # the position of `like`
SENTENCES = jnp.array([
  [WORDS.index(word) for word in (pronoun, adverb, 'like', OBJECTS[PRONOUNS.index(pronoun)])]
  for pronoun, adverb in itertools.product(PRONOUNS, ADVERBS)
])  # fmt: skip
RESIDUAL: dict[str, dict[str, Any]] = {
  'with residual': {},
  'without residual': {'attention_residual': 0.0, 'feed_forward_residual': 0.0},
}


def measure(num_layers: int, d_model: int, steps: int, learning_rate: float, seeds: int) -> dict:
  """With and without the residual: distance between queries at `like` by layer; accuracy and loss after it; by seed."""
  keys = jax.random.split(jax.random.key(0), seeds)
  measured: dict = {}
  for name, changes in RESIDUAL.items():
    config = ModelConfig(
      vocab_size=len(WORDS), num_layers=num_layers, d_model=d_model, num_heads=2, num_positions=LIKE + 1,
      position='learned', **changes,
    )  # fmt: skip
    params = jax.jit(jax.vmap(functools.partial(train, config, steps, learning_rate)))(keys)
    at_like = jax.jit(jax.vmap(functools.partial(measure_at_like, config)))(params)
    measured |= {f'{quantity} {name}': value for quantity, value in at_like.items()}
  return {
    **measured,
    'first_layer': [jnp.max(measured[f'distance {name}'][:, 0]) for name in RESIDUAL],
    'second_layer': measured['distance with residual'][:, 1],
    'right': measured['right with residual'],
  }


def train(config: ModelConfig, steps: int, learning_rate: float, key: jax.Array):
  """Parameters after `steps` steps of Adam on all sentences at once."""
  optimizer = optax.adam(learning_rate)
  params = init(config, key)

  def step(carry, _):
    params, state = carry
    gradient = jax.grad(lambda p: jnp.mean(losses(config, p)))(params)
    updates, state = optimizer.update(gradient, state, params)
    return (optax.apply_updates(params, updates), state), None

  return jax.lax.scan(step, (params, optimizer.init(params)), length=steps)[0][0]


def losses(config: ModelConfig, params) -> jax.Array:
  """The loss of every next word in nats, (sentence, position)."""
  logits_BTV, _ = apply(config, params, SENTENCES[:, :-1])
  return optax.softmax_cross_entropy_with_integer_labels(logits_BTV, SENTENCES[:, 1:])


def measure_at_like(config: ModelConfig, params) -> dict[str, jax.Array]:
  """Measures a trained model at the position of `like`.

  Returns:
    `distance`, (L,): the mean of |q - q'|/|q| over pairs of sentences that differ only in the pronoun; `right`: the
    share of sentences whose object is predicted correctly; `loss`: the loss of the object in nats.
  """
  tokens_BT = SENTENCES[:, :-1]
  x_BTD = params['embedding']['token'][tokens_BT] + params['embedding']['position'][: LIKE + 1]
  inputs_LBTD = residual_streams(config, params['blocks'], x_BTD)[:-1]

  def query_at_like(blocks, x_BTD):
    block = block_with_params(config, blocks)
    return block.attention.query(block.attention_connection.norm(x_BTD))[:, LIKE]

  q_LBD = jax.vmap(query_at_like)(params['blocks'], inputs_LBTD)
  q_LPAD = q_LBD.reshape(config.num_layers, len(PRONOUNS), len(ADVERBS), -1)
  distance_LPPA = jnp.linalg.norm(q_LPAD[:, :, None] - q_LPAD[:, None], axis=-1)
  pairs = len(PRONOUNS) * (len(PRONOUNS) - 1) * len(ADVERBS)
  predicted = jnp.argmax(apply(config, params, tokens_BT)[0][:, LIKE], -1)
  return {
    'distance': jnp.sum(distance_LPPA, (1, 2, 3)) / pairs / jnp.mean(jnp.linalg.norm(q_LPAD, axis=-1), (1, 2)),
    'right': jnp.mean(predicted == SENTENCES[:, -1]),
    'loss': jnp.mean(losses(config, params)[:, LIKE]),
  }


def draw(measured: Measured) -> Figure:
  """Left: distance between queries by layer; thin lines: seeds, thick: means. Right: the share of correct words."""
  figure = new_figure(2.6)
  left, right = figure.subplots(1, 2, width_ratios=[1.6, 1])
  colours = (VARIANT_COLOURS['pre'], VARIANT_COLOURS['no_residual'])
  for row, (name, colour) in enumerate(zip(RESIDUAL, colours, strict=True)):
    distances = np.array(measured[f'distance {name}'])
    layers = np.arange(1, distances.shape[1] + 1)
    plot_seeds_and_mean(left, layers, distances, name, colour)
    shares = np.array(measured[f'right {name}'])
    right.plot(row + np.linspace(-0.15, 0.15, len(shares)), shares, 'o', color=colour, ms=4, mew=0, gid=name)
  left.set(xlabel='layer', ylabel='distance between queries at "like"\n(relative to their norm)', ylim=(-0.05, None))
  left.set_xticks(layers)
  right.set(ylabel='correct words after "like" (share)', ylim=(-0.05, 1.05), xlim=(-0.6, 1.6))
  right.set_xticks([0, 1], ['with\nresidual', 'without\nresidual'])
  figure.legend(*left.get_legend_handles_labels(), loc='outside lower center', ncols=2)
  return figure


REPRODUCTION = Reproduction(
  claim='In layer 1 the query at "like" does not depend on the pronoun before it; from layer 2 on it may.',
  source='The article, "I like" and "They like"',
  expected=(
    exactly('first_layer', 'layer 1, with and without residual: distance between queries', (0, 0)),
    at_least('second_layer', 'layer 2, with residual: distance between queries over their norm', 0.05, over_seeds=True),
    exactly('right', 'share of correct words after "like", with residual', 1, over_seeds=True),
  ),
  seconds=12,
  draw=draw,
  caption=(
    'Left: mean distance, relative to their norm, between the queries at "like" in sentences that differ only in the '
    'pronoun, after training; thin lines: seeds. Right: the share of sentences whose last word is predicted correctly. '
    'Even without the residual, a branch that has read the pronoun can pass it on.'
  ),
  measure=measure,
  settings={'num_layers': 4, 'd_model': 32, 'steps': 200, 'learning_rate': 3e-3, 'seeds': 5},
  full={'num_layers': 12, 'd_model': 64, 'steps': 1000, 'seeds': 20},
  drift=0.05,
)
