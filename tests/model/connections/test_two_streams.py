import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from one_model import TOKENS, assert_matches, blocks, embedded
from tiny_models import filled, initial_params, model_params, quick_jit, random_stream, tiny

from model.block import Block
from model.connections.two_streams import Streams
from model.counts import num_parameters
from model.field_checks import ConfigError
from model.transformer import apply


def residual_dual(params, config):
  y = embedded(params)
  s = np.zeros_like(y)
  for _, norm, attention, feed_forward in blocks(params, config):
    for name, branch in (('attention', attention), ('feed_forward', feed_forward)):
      out = branch(y)
      y, s = norm(f'{name}_norm', y + out), s + out
  return y + reference.norm(params['ends']['norm'], s, config.norm)


def siamese_norm(params, config):
  x = y = embedded(params)
  index = 0
  for _, norm, attention, feed_forward in blocks(params, config):
    for name, branch in (('attention', attention), ('feed_forward', feed_forward)):
      index += 1
      out = branch(norm(f'{name}_norm', x + norm(f'{name}_summed_norm', y)))
      x, y = norm(f'{name}_output_norm', x + out / np.sqrt(2 * index)), y + out
  return x + reference.norm(params['ends']['norm'], y, config.norm)


@pytest.mark.parametrize(
  'more', [{}, pytest.param({'norm': 'layer', 'use_bias': True}, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize('forward', [residual_dual, siamese_norm])
def test_logits_match_the_equations(forward, more):
  assert_matches(tiny(connection=forward.__name__, num_layers=3, **more), forward)


def test_the_normed_stream_of_residual_dual_is_that_of_post_norm():
  config = tiny(connection='residual_dual')
  params = model_params(config)
  others = {name: part for name, part in params.items() if name != 'ends'}

  def squares(config, params):
    return quick_jit(lambda params: apply(config, params, TOKENS)[1]['mean']['stream_square'])(params)

  jax.tree.map(np.testing.assert_array_equal, squares(config, params), squares(tiny(connection='post'), others))


def jacobian(connection):
  """Of a block, from (normed, summed) to (normed, summed), as nested `Streams` of matrices."""
  module, _ = filled(Block(tiny(connection=connection)))
  x, _ = random_stream(1, 2, 8)
  summed, _ = random_stream(1, 2, 8, seed=1)
  run = quick_jit(jax.jacobian(lambda state: module(state, jnp.zeros((2, 3)))[0]))
  return jax.tree.map(lambda block: np.asarray(block).reshape(16, 16), run(Streams(x, summed)))


def test_the_normed_stream_of_residual_dual_does_not_depend_on_the_sum():
  blocks = jacobian('residual_dual')
  np.testing.assert_array_equal(blocks.normed.summed, 0)
  np.testing.assert_array_equal(blocks.summed.summed, np.eye(16))
  assert np.linalg.norm(blocks.summed.normed) > 0.1
  assert np.linalg.norm(blocks.normed.normed) > 0.1


def test_each_stream_of_siamese_norm_depends_on_both():
  blocks = jacobian('siamese_norm')
  assert all(np.linalg.norm(block) > 0.1 for block in jax.tree.leaves(blocks))


@pytest.mark.parametrize(('connection', 'norms'), [('residual_dual', 4 + 1), ('siamese_norm', 12 + 1)])
def test_parameters_and_initial_values(connection, norms):
  config, width = tiny(connection=connection), 8
  assert num_parameters(config) == num_parameters(tiny(connection='none')) + norms * width
  params = initial_params(config)
  np.testing.assert_array_equal(params['ends']['norm']['gain'], 1)
  for kernel in (params['blocks']['attention']['output'], params['blocks']['feed_forward']['down']):
    deviation = (2 * config.num_layers * kernel['kernel'].shape[1]) ** -0.5
    assert np.std(kernel['kernel']) == pytest.approx(deviation, rel=0.2)


@pytest.mark.parametrize('connection', ['residual_dual', 'siamese_norm'])
@pytest.mark.parametrize('changes', [{'attention_residual': 0.5}, {'rezero': True}, {'parallel': True}], ids=str)
def test_refusals(connection, changes):
  with pytest.raises(ConfigError, match=rf'connection={connection} has no|requires model\.connection='):
    tiny(connection=connection, **changes)
