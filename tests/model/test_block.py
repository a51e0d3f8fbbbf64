import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import PLACEMENTS, distance, filled, quick_jit, random_stream, tiny, with_zero_branches

from model.block import Block
from model.config import ConfigError
from model.connections.norm_placement import DeepNorm

SCALES = ((1.0, 1.0), (0.5, 0.25), (0.5, 0.5), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0))
NORMS = ({'norm': 'rms'}, {'norm': 'layer', 'use_bias': True})


def all_residual_configs():
  """Every valid combination of norm placement, residual scales, ReZero, parallel branches and kind of norm."""
  for placement, scales, rezero, parallel, norm in itertools.product(
    PLACEMENTS, SCALES, (False, True), (False, True), NORMS
  ):
    fields = {'connection': placement, 'rezero': rezero, 'parallel': parallel} | norm
    try:
      config = tiny(attention_residual=scales[0], feed_forward_residual=scales[1], **fields)
    except ConfigError:
      continue
    parts = [placement, *map(str, scales), norm['norm'], *['rezero'] * rezero, *['parallel'] * parallel]
    yield pytest.param(config, id='-'.join(parts))


RESIDUAL_CONFIGS = list(all_residual_configs())


def make_block(config, seed=0, zero_branches=False):
  """A function (x, dropout_key, full_stats) -> (y, stats), and the block's parameters in float64."""
  block, params = filled(Block(config), seed)
  if zero_branches:
    for kernel in (block.attention.output.kernel, block.feed_forward.down.kernel):
      kernel[...] = jnp.zeros_like(kernel[...])
    params = with_zero_branches(params)
  return lambda x, key=None, full_stats=False: block(x, jnp.zeros((2, 3)), key, full_stats), params


def test_every_placement_is_covered():
  counts = {name: sum(p.values[0].connection == name for p in RESIDUAL_CONFIGS) for name in PLACEMENTS}
  assert counts == {'pre': 36, 'post': 12, 'sandwich': 12, 'res_post': 12, 'deepnorm': 2, 'none': 24}


@pytest.mark.parametrize('config', RESIDUAL_CONFIGS)
def test_block_matches_the_reference(config):
  run, params = make_block(config)
  x, exact = random_stream(2, 5, 8)
  y, stats = run(x)
  expected = reference.block(params, exact, config)
  assert distance(y, expected[1]) < 2e-6
  squares = stats['mean']['stream_square']
  assert (list(stats['mean']), stats['max']) == (['stream_square'], {})
  np.testing.assert_allclose(
    [squares['attention'], squares['feed_forward']], [(y**2).mean() for y in expected], rtol=1e-5
  )


@pytest.mark.parametrize('parallel', [False, True])
@pytest.mark.parametrize('norm', NORMS)
def test_pre_with_zero_branches_is_the_identity(norm, parallel):
  run, _ = make_block(tiny(parallel=parallel, norm=norm['norm']), zero_branches=True)
  x, _ = random_stream(2, 5, 8)
  np.testing.assert_array_equal(run(x)[0], x)


@pytest.mark.parametrize('parallel', [False, True])
def test_pre_with_zero_branches_and_no_residual_is_zero(parallel):
  config = tiny(parallel=parallel, attention_residual=0.0, feed_forward_residual=0.0)
  run, _ = make_block(config, zero_branches=True)
  np.testing.assert_array_equal(run(random_stream(2, 5, 8)[0])[0], 0)


@pytest.mark.parametrize('norm', ['rms', 'layer'])
def test_post_with_zero_branches_applies_the_norm_twice(norm):
  run, params = make_block(tiny(connection='post', norm=norm), zero_branches=True)
  x, exact = random_stream(2, 5, 8)
  once = reference.norm(params['attention_norm'], exact, norm)
  twice = reference.norm(params['feed_forward_norm'], once, norm)
  assert distance(run(x)[0], twice) < 1e-6


@pytest.mark.parametrize('placement', ['pre', 'none'])
@pytest.mark.parametrize('parallel', [False, True])
def test_a_rezero_block_is_initially_exactly_the_identity(placement, parallel):
  if parallel and placement == 'none':
    return
  block, _ = filled(Block(tiny(connection=placement, rezero=True, parallel=parallel)))
  for connection in (block.attention_connection, block.feed_forward_connection):
    connection.scale[...] = jnp.zeros(())
  x, _ = random_stream(2, 5, 8)
  np.testing.assert_array_equal(block(x, jnp.zeros((2, 3)))[0], x)


def test_deepnorm_residual_scale():
  config = tiny(connection='deepnorm', num_layers=12)
  np.testing.assert_allclose(DeepNorm.residual_scale(config, 'attention'), 2.2134, atol=5e-5)


def test_forward_statistics_have_no_gradient():
  block, _ = filled(Block(tiny(feed_forward='relu')))
  x, _ = random_stream(2, 5, 8)

  def sum_of_statistics(x):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(block(x, jnp.zeros((2, 3)), full_stats=True)[1]))

  np.testing.assert_array_equal(quick_jit(jax.grad(sum_of_statistics))(x), 0)


@pytest.mark.slow
def test_in_bfloat16_the_stream_is_float32():
  for placement in PLACEMENTS:
    config = tiny(connection=placement, dtype='bfloat16')
    run, params = make_block(config)
    x, exact = random_stream(2, 5, 8)
    y, stats = run(x, full_stats=True)
    assert {y.dtype, *(leaf.dtype for leaf in jax.tree.leaves(stats))} == {jnp.dtype('float32')}
    assert 1e-5 < distance(y, reference.block(params, exact, config)[1]) < 2e-2
  identity, _ = make_block(tiny(dtype='bfloat16'), zero_branches=True)
  assert distance(identity(x)[0], exact) < 1e-7  # the stream is never rounded


@pytest.mark.parametrize('branch', ['attention', 'feed_forward'])
def test_branch_dropout_keeps_the_expectation(branch):
  config = tiny(connection='none', dropout=0.4)
  block, params = filled(Block(config))
  other = block.feed_forward.down if branch == 'attention' else block.attention.output
  other.kernel[...] = jnp.zeros_like(other.kernel[...])
  x, exact = random_stream(1, 3, 8)
  expected = {
    'attention': lambda: reference.attention(params['attention'], exact, config),
    'feed_forward': lambda: reference.feed_forward(params['feed_forward'], exact, 'swiglu'),
  }[branch]()
  keys = jax.random.split(jax.random.key(0), 3000)
  run = quick_jit(jax.vmap(lambda key: block(x, jnp.zeros((2, 3)), key)[0] - x))
  updates = np.asarray(run(keys), np.float64)
  deviation = updates.std(0) / len(keys) ** 0.5
  assert (deviation > 0).all()
  assert (np.abs(updates.mean(0) - expected) < 4.5 * deviation).all()
  assert abs((updates != 0).mean() - 0.6) < 0.02 or branch == 'attention'
