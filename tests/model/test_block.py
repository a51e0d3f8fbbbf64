import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, filled, quick_jit, random_stream, tiny, with_zero_branches

from model.block import Block, residual_scales
from model.config import ConfigError

PLACEMENTS = ('pre', 'post', 'sandwich', 'res_post', 'deepnorm', 'none')
SCALES = ((1.0, 1.0), (0.5, 0.25), (0.5, 0.5), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0))
NORMS = ({'norm': 'rms'}, {'norm': 'layer', 'use_bias': True})


def all_wirings():
  """Every combination that ModelConfig takes."""
  for placement, scales, rezero, parallel, norm in itertools.product(
    PLACEMENTS, SCALES, (False, True), (False, True), NORMS
  ):
    fields = {'norm_placement': placement, 'rezero': rezero, 'parallel': parallel} | norm
    try:
      config = tiny(attention_residual=scales[0], feed_forward_residual=scales[1], **fields)
    except ConfigError:
      continue
    words = [placement, *map(str, scales), norm['norm'], *['rezero'] * rezero, *['parallel'] * parallel]
    yield pytest.param(config, id='-'.join(words))


WIRINGS = list(all_wirings())


def make_block(config, seed=0, zero_branches=False):
  """A function (x, dropout_key) -> (y, stats), and the block's parameters in float64."""
  block, params = filled(Block(config), seed)
  if zero_branches:
    for kernel in (block.attention.output.kernel, block.feed_forward.down.kernel):
      kernel[...] = jnp.zeros_like(kernel[...])
    params = with_zero_branches(params)
  return lambda x, key=None, observe=False: block(x, jnp.zeros((2, 3)), key, observe), params


def test_the_wirings_are_all_there():
  counts = {name: sum(p.values[0].norm_placement == name for p in WIRINGS) for name in PLACEMENTS}
  assert counts == {'pre': 36, 'post': 12, 'sandwich': 12, 'res_post': 12, 'deepnorm': 2, 'none': 24}


@pytest.mark.parametrize('config', WIRINGS)
def test_block_by_hand(config):
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
def test_pre_with_branches_at_zero_returns_its_input(norm, parallel):
  run, _ = make_block(tiny(parallel=parallel, norm=norm['norm']), zero_branches=True)
  x, _ = random_stream(2, 5, 8)
  np.testing.assert_array_equal(run(x)[0], x)


@pytest.mark.parametrize('parallel', [False, True])
def test_pre_without_residual_and_with_branches_at_zero_is_zero(parallel):
  config = tiny(parallel=parallel, attention_residual=0.0, feed_forward_residual=0.0)
  run, _ = make_block(config, zero_branches=True)
  np.testing.assert_array_equal(run(random_stream(2, 5, 8)[0])[0], 0)


@pytest.mark.parametrize('norm', ['rms', 'layer'])
def test_post_with_branches_at_zero_norms_twice(norm):
  run, params = make_block(tiny(norm_placement='post', norm=norm), zero_branches=True)
  x, exact = random_stream(2, 5, 8)
  once = reference.norm(params['attention_norm'], exact, norm)
  twice = reference.norm(params['feed_forward_norm'], once, norm)
  assert distance(run(x)[0], twice) < 1e-6


@pytest.mark.parametrize('placement', ['pre', 'none'])
@pytest.mark.parametrize('parallel', [False, True])
def test_rezero_starts_as_the_exact_identity(placement, parallel):
  if parallel and placement == 'none':
    return
  block, _ = filled(Block(tiny(norm_placement=placement, rezero=True, parallel=parallel)))
  block.attention_scale[...] = block.feed_forward_scale[...] = jnp.zeros(())
  x, _ = random_stream(2, 5, 8)
  np.testing.assert_array_equal(block(x, jnp.zeros((2, 3)))[0], x)


def test_deepnorm_scale():
  np.testing.assert_allclose(
    residual_scales(tiny(norm_placement='deepnorm', num_layers=12)), (2.2134, 2.2134), atol=5e-5
  )


def test_stats_stay_out_of_the_gradient():
  block, _ = filled(Block(tiny(feed_forward='relu')))
  x, _ = random_stream(2, 5, 8)

  def everything(x):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(block(x, jnp.zeros((2, 3)), observe=True)[1]))

  np.testing.assert_array_equal(quick_jit(jax.grad(everything))(x), 0)


@pytest.mark.slow
def test_in_bfloat16_the_stream_is_float32():
  for placement in PLACEMENTS:
    config = tiny(norm_placement=placement, dtype='bfloat16')
    run, params = make_block(config)
    x, exact = random_stream(2, 5, 8)
    y, stats = run(x, observe=True)
    assert {y.dtype, *(leaf.dtype for leaf in jax.tree.leaves(stats))} == {jnp.dtype('float32')}
    assert 1e-5 < distance(y, reference.block(params, exact, config)[1]) < 2e-2
  assert distance(make_block(tiny(dtype='bfloat16'), zero_branches=True)[0](x)[0], exact) < 1e-7  # never rounded


@pytest.mark.parametrize('branch', ['attention', 'feed_forward'])
def test_dropout_keeps_the_expectation_of_a_branch(branch):
  config = tiny(norm_placement='none', dropout=0.4)
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
