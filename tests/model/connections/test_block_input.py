import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_model import assert_matches, blocks, embedded, logits
from tiny_models import distance, filled, float64, model_params, random_stream, tiny, with_zero_branches

from model.connections import Site
from model.connections.block_input import BottomToTop, StreamAndInput
from model.connections.norm_placement import PostNorm
from model.counts import num_parameters
from model.field_checks import ConfigError

SITE = Site(jnp.int32(1), 4)


def b2t(params, config):
  x = embedded(params)
  for _, norm, attention, feed_forward in blocks(params, config):
    u = norm('attention_norm', x + attention(x))
    x = norm('feed_forward_norm', x + u + feed_forward(u))
  return x


@pytest.mark.parametrize(
  'more', [{}, pytest.param({'norm': 'layer', 'use_bias': True}, marks=pytest.mark.slow)], ids=str
)
def test_logits_match_the_equations(more):
  assert_matches(tiny(connection='b2t', num_layers=3, **more), b2t)


def test_with_zero_branches_a_block_norms_the_sum_of_its_input_and_its_norm():
  config = tiny(connection='b2t', num_layers=1)
  params = with_zero_branches(model_params(config))
  exact = float64(params)
  (_, norm, _, _), x = next(blocks(exact, config)), embedded(exact)
  expected = norm('feed_forward_norm', x + norm('attention_norm', x)) @ exact['head']['kernel']
  assert distance(logits(config, params), expected) < 1e-6


def writes(design, config):
  """The two sublayers of a block, without their branches: stream x_BTD and both terms -> state after the block."""
  attention, feed_forward = (
    filled(design(config, name, SITE), k)[0] for k, name in enumerate(('attention', 'feed_forward'))
  )
  return attention, feed_forward


def test_the_extra_path_adds_exactly_one_skip_term():
  config = tiny(connection='b2t')
  attention, feed_forward = writes(BottomToTop, config)
  post_attention, post_feed_forward = writes(PostNorm, tiny(connection='post'))
  x, first, second, out = (random_stream(1, 3, 8, seed=k)[0] for k in range(4))

  def block(x):
    state = attention.write(StreamAndInput(x, jnp.zeros_like(x)), first, SITE)
    return feed_forward.write(state, second, SITE).stream

  def post(x, extra):
    return post_feed_forward.write(extra + post_attention.write(x, first, SITE), second, SITE)

  after, backward = jax.vjp(block, x)
  expected, post_backward = jax.vjp(post, x, x)
  along_post, extra = post_backward(out)
  np.testing.assert_array_equal(after, expected)
  np.testing.assert_allclose(backward(out)[0], along_post + extra, rtol=1e-5)
  # The extra term passes through the last norm alone: it is the gradient at that norm's input.
  u = post_attention.write(x, first, SITE)
  (at_last_norm,) = jax.vjp(post_feed_forward.norm, x + u + second)[1](out)
  np.testing.assert_allclose(extra, at_last_norm, rtol=1e-5)
  assert np.linalg.norm(extra) > 0.1


def test_without_the_block_input_a_sublayer_is_that_of_post_norm():
  config = tiny(connection='b2t')
  x, y = (random_stream(1, 3, 8, seed=k)[0] for k in range(2))
  state = StreamAndInput(x, jnp.zeros_like(x))
  for mine, post in zip(writes(BottomToTop, config), writes(PostNorm, tiny(connection='post')), strict=True):
    np.testing.assert_array_equal(mine.write(state, y, SITE).stream, post.write(x, y, SITE))


def test_the_block_input_lasts_for_one_block():
  attention, feed_forward = writes(BottomToTop, tiny(connection='b2t'))
  x, y = (random_stream(1, 3, 8, seed=k)[0] for k in range(2))
  state = attention.write(StreamAndInput(x, y), y, SITE)
  np.testing.assert_array_equal(state.block_input, x)
  np.testing.assert_array_equal(feed_forward.write(state, y, SITE).block_input, 0)


def test_parameters_are_those_of_post_norm():
  assert num_parameters(tiny(connection='b2t')) == num_parameters(tiny(connection='post'))


@pytest.mark.parametrize('changes', [{'attention_residual': 0.5}, {'rezero': True}, {'parallel': True}], ids=str)
def test_refusals(changes):
  with pytest.raises(ConfigError, match=r'connection=b2t has no|requires model\.connection='):
    tiny(connection='b2t', **changes)
