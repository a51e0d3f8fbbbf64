import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
import stream_reference
from separate_leaves import split_products
from tiny_models import distance, float64, initial_params, model_params, quick_jit, tiny

from model.block import split_module
from model.config import ConfigError
from model.connections import Site
from model.connections.branch_scale import LayerScale, StochasticDepth
from model.transformer import apply, init, param_shapes, zero_taps

TOKENS = jnp.array([[3, 1, 4], [1, 5, 9], [2, 6, 5]])


def logits(config, params, key=None):
  return quick_jit(lambda params: apply(config, params, TOKENS, dropout_key=key)[0])(params)


def pre_norm(p, x):
  return reference.norm(p['norm'], x, 'rms')


def layer_scale(a, index, p, x, F):
  return a * x + p['channel_scale'] * F(pre_norm(p, x))


def layer_norm_scaling(a, index, p, x, F):
  return a * x + F(pre_norm(p, x) / np.sqrt({1: 1, 2: 1, 3: 2, 4: 2}[index]))


def pre(a, index, p, x, F):
  return a * x + F(pre_norm(p, x))


@pytest.mark.parametrize('a', [1.0, 0.5])
@pytest.mark.parametrize(
  ('connection', 'sublayer'),
  [('layer_scale', layer_scale), ('layer_norm_scaling', layer_norm_scaling), ('stochastic_depth', pre)],
)
def test_logits_match_the_equations(connection, sublayer, a):
  config = tiny(connection=connection, attention_residual=a, feed_forward_residual=a)
  params = model_params(config)
  expected = stream_reference.logits(float64(params), TOKENS, config, functools.partial(sublayer, a))
  assert distance(logits(config, params), expected) < 3e-6


def masks(config, key):
  """The b of each sublayer and sequence, (2 L, B), and p."""
  p = 1 - np.arange(1, 2 * config.num_layers + 1) / (2 * config.num_layers) * (1 - config.connection_options.p_last)
  keys = jax.random.split(key, config.num_layers)
  sites = [jax.random.fold_in(keys[s // 2], s % 2) for s in range(len(p))]
  draws = [jax.random.bernoulli(k, q, (len(TOKENS), 1, 1))[:, 0, 0] for k, q in zip(sites, p, strict=True)]
  return np.array(draws, np.float64), p


def test_stochastic_depth_in_training_matches_the_equations():
  config = tiny(connection='stochastic_depth:p_last=0.4')
  params, key = model_params(config), jax.random.key(3)
  kept, p = masks(config, key)
  assert (kept.min(1) < kept.max(1)).any()  # sequences differ

  def sublayer(index, own, x, F):
    return x + kept[index - 1][:, None, None] / p[index - 1] * F(pre_norm(own, x))

  expected = stream_reference.logits(float64(params), TOKENS, config, sublayer)
  assert distance(logits(config, params, key), expected) < 3e-6


@pytest.mark.slow
def test_the_split_under_stochastic_depth():
  config, key = tiny(connection='stochastic_depth:p_last=0.4'), jax.random.key(3)
  params, weights_BTV = model_params(config), np.random.default_rng(7).normal(size=(3, 3, 11)).astype(np.float32)

  def measured(params, taps):
    return jax.grad(lambda taps: jnp.sum(weights_BTV * apply(config, params, TOKENS, taps, key)[0]))(taps)

  taps = quick_jit(measured)(params, zero_taps(config, 3))
  program = quick_jit(functools.partial(split_products, config, dropout_key=key))
  expected = np.asarray(program(params, TOKENS, weights_BTV))
  actual = np.concatenate([np.asarray(taps['blocks']).reshape(4, 3, 3), np.asarray(taps['output'])[None]])
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_stochastic_depth_has_the_expectation_of_the_deterministic_pass_for_linear_branches():
  """40,000 sequences are as many masks of each sublayer."""
  config, width, sequences = tiny(connection='stochastic_depth:p_last=0.3'), 8, 40_000
  rng = np.random.default_rng(0)
  kernels, x = rng.normal(size=(4, width, width)) / width**0.5, rng.normal(size=width)
  state, exact, frequencies = jnp.tile(jnp.asarray(x, jnp.float32), (sequences, 1, 1)), x, []
  for index, kernel in enumerate(kernels, 1):
    site = Site(jnp.int32(index), 4, jax.random.fold_in(jax.random.key(0), index))
    connection = StochasticDepth(config, 'attention' if index % 2 else 'feed_forward', site)
    term = connection.term(state @ jnp.asarray(kernel, jnp.float32), site)
    frequencies.append(np.mean(np.abs(term).sum((1, 2)) > 0))
    state, exact = connection.write(state, term, site), exact + exact @ kernel
  p = np.array([0.825, 0.65, 0.475, 0.3])
  np.testing.assert_array_less(np.abs(frequencies - p), 5 * np.sqrt(p * (1 - p) / sequences))
  samples = np.asarray(state[:, 0], np.float64)
  np.testing.assert_array_less(np.abs(samples.mean(0) - exact), 5 * samples.std(0) / sequences**0.5)


@pytest.mark.parametrize('more', [{}, {'parallel': True}, {'dropout': 0.5}], ids=str)
@pytest.mark.parametrize('connection', ['layer_scale', 'stochastic_depth:p_last=1'])
def test_a_factor_of_1_is_pre(connection, more):
  config, plain = tiny(connection=connection, **more), tiny(**more)
  expected, key = model_params(plain), jax.random.key(1)
  scales = {name: jnp.ones((2, 8)) for name in param_shapes(config)['blocks'] if name.endswith('channel_scale')}
  params = expected | {'blocks': expected['blocks'] | scales}
  np.testing.assert_array_equal(logits(config, params, key), logits(plain, expected, key))
  assert config.stochastic == plain.stochastic


@pytest.mark.parametrize('more', [{'rezero': True}, {'parallel': True}], ids=str)
def test_stochastic_depth_combines_with(more):
  """At each sublayer one of the two branches of parallel blocks is dropped on its own."""
  config, plain = tiny(connection='stochastic_depth:p_last=0.4', **more), tiny(**more)
  params = model_params(config)
  np.testing.assert_array_equal(logits(config, params), logits(plain, params))
  assert distance(logits(config, params, jax.random.key(3)), logits(plain, params)) > 0.01


@pytest.mark.parametrize(('layers', 'value'), [(1, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)])
def test_initial_layer_scale_by_depth(layers, value):
  config = tiny(connection='layer_scale', num_layers=layers)
  _, params = split_module(LayerScale(config, 'attention', Site(jnp.int32(1), 2 * layers)))
  np.testing.assert_array_equal(params['channel_scale'], np.full(8, value, np.float32))


def test_initial_layer_scale_by_option():
  config = tiny(connection='layer_scale:initial=0.25')
  blocks = initial_params(config)['blocks']
  for name in ('attention_channel_scale', 'feed_forward_channel_scale'):
    np.testing.assert_array_equal(blocks[name], np.full((2, 8), 0.25))


def test_parameters_beyond_those_of_pre():
  plain = set(jax.tree.leaves_with_path(param_shapes(tiny()), is_leaf=lambda x: hasattr(x, 'shape')))
  for connection, extra in (('layer_scale', 2 * 2 * 8), ('stochastic_depth', 0), ('layer_norm_scaling', 0)):
    more = set(jax.tree.leaves_with_path(param_shapes(tiny(connection=connection)))) - plain
    assert sum(leaf.size for _, leaf in more) == extra


def stream_variance(connection, depth_scale):
  """The mean square of the stream after each of 16 untrained blocks, relative to that after the first."""
  config = tiny(
    connection=connection, num_layers=16, d_model=32, d_ff=64, feed_forward='relu', init_depth_scale=depth_scale
  )
  square = quick_jit(lambda: apply(config, init(config, jax.random.key(0)), TOKENS)[1])()['mean']['stream_square'][
    'feed_forward'
  ]
  return np.asarray(square) / square[0]


@pytest.mark.slow
def test_layer_norm_scaling_bounds_the_growth_of_the_stream_unless_depth_scale_does():
  """Without depth scale the stream grows with l under pre, and as log(l) here; with it, neither grows much."""
  pre_growth, scaled_growth = stream_variance('pre', False), stream_variance('layer_norm_scaling', False)
  harmonic = np.cumsum(1 / np.arange(1, 17))
  assert pre_growth[-1] > 2 * scaled_growth[-1]
  assert scaled_growth[-1] < harmonic[-1]
  masked = stream_variance('pre', True)[-1], stream_variance('layer_norm_scaling', True)[-1]
  assert 1 < masked[1] < masked[0] < 3


@pytest.mark.parametrize(
  ('connection', 'message'),
  [
    ('layer_scale:initial=-0.1', 'layer_scale:initial=-0.1: must be positive, or 0'),
    ('layer_scale:initial=nan', 'must be a finite number'),
    ('stochastic_depth:p_last=0', r'stochastic_depth:p_last=0.0: must be above 0 and at most 1'),
    ('stochastic_depth:p_last=1.5', r'stochastic_depth:p_last=1.5: must be above 0'),
    ('stochastic_depth:p_last=nan', 'p_last=nan: must be above 0'),
    ('layer_norm_scaling:p=1', 'unknown option'),
  ],
)
def test_refused_options(connection, message):
  with pytest.raises(ConfigError, match=message):
    tiny(connection=connection)


def test_layer_scale_refuses_rezero():
  with pytest.raises(ConfigError, match=r'model\.rezero requires'):
    tiny(connection='layer_scale', rezero=True)
