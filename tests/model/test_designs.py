"""What must hold of every residual design."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from designs import DESIGNS, KINDS
from separate_leaves import split_products
from tiny_models import initial_params, model_params, quick, quick_jit, tiny

from model.connections import CONNECTIONS
from model.transformer import apply, param_shapes, zero_taps

LENGTH = 3
TOKENS = jnp.array([[3, 1, 4], [1, 5, 9]])
WEIGHTS_BTV = np.random.default_rng(7).normal(size=(2, LENGTH, 11)).astype(np.float32)
WEIGHTS = ('reading', 'mixing', 'writing')  # of designs with several arrays


def design(changes, **more):
  return tiny(**{'d_model': 4, 'd_ff': 6} | changes | more)


def measured(config, params, taps, weight=1.0):
  """The gradient of a random linear function of the logits with respect to the taps."""
  return jax.grad(lambda taps: jnp.sum(weight * WEIGHTS_BTV * apply(config, params, TOKENS, taps)[0]))(taps)


def flat(taps):
  """The products of all sublayers, and of the output: (2 L + 1, ..., 3)."""
  blocks = np.asarray(taps['blocks'], np.float64)
  return np.concatenate([blocks.reshape(-1, *blocks.shape[2:]), np.asarray(taps['output'], np.float64)[None]])


def assert_same_split(actual, expected):
  """To 1e-4 of the sizes of the two paths."""
  sizes = np.sqrt(expected[..., 0] * expected[..., 1])
  np.testing.assert_allclose(actual[..., :2], expected[..., :2], rtol=1e-4, atol=1e-12)
  assert (np.abs(actual[..., 2] - expected[..., 2]) <= 1e-4 * sizes + 1e-12).all()


@functools.cache
def split(name, positions=LENGTH):
  config = design(DESIGNS[name])
  return flat(quick_jit(functools.partial(measured, config))(model_params(config), zero_taps(config, positions)))


def test_every_connection_has_a_design():
  assert {changes.get('connection', 'pre').partition(':')[0] for changes in DESIGNS.values()} == set(CONNECTIONS)


@pytest.mark.parametrize('name', CONNECTIONS)
def test_every_connection_says_what_it_is_and_where_it_is_from(name):
  first, *_ = (CONNECTIONS[name].__doc__ or '').splitlines()
  assert name == 'none' or re.search(r'\d{4}', first), first
  assert CONNECTIONS[name].__doc__ != CONNECTIONS[name].__base__.__doc__


@pytest.mark.parametrize('name', quick(DESIGNS, KINDS))
def test_the_split_against_separate_leaves(name):
  config = design(DESIGNS[name])
  params = model_params(config)
  expected = quick_jit(functools.partial(split_products, config))(params, TOKENS, WEIGHTS_BTV)
  assert_same_split(split(name), np.asarray(expected, np.float64))


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'more'),
  [*((name, {'remat': True}) for name in KINDS), *((name, {'remat': True, 'unroll': 2}) for name in DESIGNS)],
  ids=str,
)
def test_the_split_under_recomputation_and_unrolling(name, more):
  config = design(DESIGNS[name], **more)
  taps = quick_jit(functools.partial(measured, config))(model_params(config), zero_taps(config, LENGTH))
  assert_same_split(flat(taps), split(name))


@pytest.mark.slow
@pytest.mark.parametrize('name', DESIGNS)
def test_the_split_under_vmap(name):
  config = design(DESIGNS[name])
  taps = jax.tree.map(lambda tap: jnp.stack([tap, tap]), zero_taps(config))
  program = jax.vmap(functools.partial(measured, config, model_params(config)))
  mapped = quick_jit(program)(taps, jnp.array([1.0, 3.0]))
  for index, factor in enumerate((1, 9)):
    one = jax.tree.map(lambda tap, index=index, factor=factor: tap[index] / factor, mapped)
    assert_same_split(flat(one), split(name).sum(1))


@pytest.mark.slow
@pytest.mark.parametrize('name', DESIGNS)
def test_no_position_depends_on_a_later_one(name):
  config = design(DESIGNS[name])
  params = model_params(config)
  run = quick_jit(lambda tokens: apply(config, params, tokens)[0])
  np.testing.assert_array_equal(run(TOKENS)[:, :2], run(TOKENS.at[:, 2].set(7))[:, :2])


@pytest.mark.parametrize('name', quick(DESIGNS, KINDS))
def test_initial_values_and_statistics(name):
  config = design(DESIGNS[name])
  params = initial_params(config)
  assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params) == jax.tree.map(
    lambda leaf: (leaf.shape, np.dtype('float32')), param_shapes(config)
  )
  _, stats = jax.eval_shape(lambda: apply(config, params, TOKENS, full_stats=True))
  pre = design({}, num_layers=config.num_layers)
  _, plain = jax.eval_shape(lambda: apply(pre, model_params(pre), TOKENS, full_stats=True))
  assert {**stats, 'mean': {name: value for name, value in stats['mean'].items() if name not in WEIGHTS}} == plain
