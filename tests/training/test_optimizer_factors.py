"""Learning rates, epsilon and weight decay by parameter, as the connection has them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_steps import same_bits

from model.config import ConfigError, ModelConfig
from model.connections import CONNECTIONS
from model.transformer import param_shapes
from training.config import Config, OptimizerConfig
from training.optimizer import make_optimizer, optimizer_factors

TINY = ModelConfig(vocab_size=11, num_layers=2, d_model=8, num_heads=2, use_bias=True, norm='layer')
SETTINGS = OptimizerConfig(
  learning_rate=0.05, warmup_steps=0, schedule='constant', epsilon=1e-2, weight_decay=0.3, clip=3.0
)
# m = 8 / 2 = 4 times the width, n = 2 / 1 = 2 times the depth.
COMPLETEP = dataclasses.replace(TINY, connection='completep:base_layers=1:base_width=2')


def named(tree) -> dict:
  return {'/'.join(key.key for key in path): np.asarray(x, np.float64) for path, x in jax.tree.leaves_with_path(tree)}


def random_tree(model, seed):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), param_shapes(model))


def updated(config, model, updates=3, factors_of=None):
  """The parameters after some updates of random gradients."""
  optimizer, params = make_optimizer(config, 9, factors_of), random_tree(model, 0)
  state, update = optimizer.init(params), jax.jit(optimizer.update)
  for seed in range(updates):
    moves, state = update(random_tree(model, seed + 1), state, params)
    params = jax.tree.map(jnp.add, params, moves)
  return params, state


def table(path) -> tuple[float, float, float]:
  """The multiples of learning rate, epsilon and weight decay in the table of Dey et al. 2025 for COMPLETEP."""
  if path == 'head/kernel':
    return 1 / 4, 1, 4
  if path == 'head/bias':
    return 1, 1, 1
  if not path.startswith('blocks/'):
    return 1, 1 / 4, 1
  return (1 / 4, 1 / 8, 4) if path.endswith('/kernel') else (1, 1 / 8, 1)


def test_completep_updates_by_hand():
  c = SETTINGS
  params = named(random_tree(COMPLETEP, 0))
  moments = dict.fromkeys(params, (0.0, 0.0))
  for t in (1, 2, 3):
    gradient = named(random_tree(COMPLETEP, t))
    clip = min(1.0, c.clip / np.sqrt(sum((g**2).sum() for g in gradient.values())))
    for path, g in gradient.items():
      rate, epsilon, decay = table(path)
      m = c.beta1 * moments[path][0] + (1 - c.beta1) * clip * g
      v = c.beta2 * moments[path][1] + (1 - c.beta2) * (clip * g) ** 2
      moments[path] = m, v
      step = m / (1 - c.beta1**t) / (np.sqrt(v / (1 - c.beta2**t)) + epsilon * c.epsilon)
      if path.endswith('/kernel'):
        step = step + decay * c.weight_decay * params[path]
      params[path] = params[path] - rate * c.learning_rate * step
  ours = named(updated(c, COMPLETEP, factors_of=COMPLETEP)[0])
  for path, leaf in params.items():
    np.testing.assert_allclose(ours[path], leaf, rtol=2e-5, atol=4e-6, err_msg=path)


@pytest.mark.parametrize(
  'name', ['adamw', *(pytest.param(name, marks=pytest.mark.slow) for name in ('sgd', 'lion', 'muon'))]
)
def test_the_embedding_scalars_have_learning_rates_of_their_own(name):
  config = dataclasses.replace(SETTINGS, name=name)
  model = dataclasses.replace(TINY, connection='embedding_scalars:rate=4')
  start = named(random_tree(model, 0))
  plain, ours = (named(updated(config, model, 1, m)[0]) for m in (None, model))
  for path, before in start.items():
    factor = {'blocks/attention_stream_scalar': 0.04, 'blocks/attention_embedding_scalar': 4.0}.get(path, 1.0)
    expected = before + factor * (plain[path] - before)
    np.testing.assert_allclose(ours[path], expected, rtol=1e-5, atol=1e-6, err_msg=path)


@pytest.mark.parametrize(
  'name', ['adamw', *(pytest.param(name, marks=pytest.mark.slow) for name in ('sgd', 'lion', 'muon'))]
)
def test_without_factors_the_optimizer_is_unchanged(name):
  config = dataclasses.replace(SETTINGS, name=name)
  one, other = updated(config, TINY), updated(config, TINY, factors_of=TINY)
  assert jax.tree.structure(one) == jax.tree.structure(other)
  assert same_bits(one, other)


def test_only_these_designs_have_factors():
  found = {name for name in CONNECTIONS if optimizer_factors(dataclasses.replace(TINY, connection=name))}
  assert found == {'embedding_scalars', 'completep'}


def test_the_optimizer_counts_updates_in_its_last_part():
  assert int(updated(SETTINGS, COMPLETEP, factors_of=COMPLETEP)[1][-1].count) == 3  # as training/step.py reads it


def test_completep_is_for_adamw():
  Config(model=COMPLETEP)
  with pytest.raises(ConfigError, match=r'optimizer.name=sgd: model.connection=completep.* for adamw only'):
    Config(model=COMPLETEP, optimizer=OptimizerConfig(name='sgd'))
