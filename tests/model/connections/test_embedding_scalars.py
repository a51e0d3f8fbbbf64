import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, float64, initial_params, model_params, quick_jit, tiny

from model.config import ConfigError
from model.counts import num_parameters
from model.transformer import apply

TOKENS = jnp.array([[3, 1, 4], [1, 5, 9]])


def by_hand(config, params, tokens):
  x = x0 = params['embedding']['token'][tokens]
  for index in range(config.num_layers):
    p = reference.layer(params['blocks'], index)
    x = p['attention_stream_scalar'] * x + p['attention_embedding_scalar'] * x0
    x = x + reference.attention(p['attention'], reference.norm(p['attention_norm'], x, config.norm), config)
    normed = reference.norm(p['feed_forward_norm'], x, config.norm)
    x = x + reference.feed_forward(p['feed_forward'], normed, config.feed_forward)
  return reference.norm(params['final_norm'], x, config.norm) @ params['head']['kernel']


def test_the_logits_by_hand():
  config = tiny(connection='embedding_scalars')
  params = model_params(config)
  logits = quick_jit(lambda params: apply(config, params, TOKENS)[0])(params)
  assert distance(logits, by_hand(config, float64(params), np.asarray(TOKENS))) < 1e-5


def test_starts_as_pre_bit_for_bit():
  config, pre = tiny(connection='embedding_scalars'), tiny()
  params, params_of_pre = (initial_params(c, 3) for c in (config, pre))
  blocks = dict(params['blocks'])
  scalars = blocks.pop('attention_stream_scalar'), blocks.pop('attention_embedding_scalar')
  np.testing.assert_array_equal(scalars, [[1, 1], [0, 0]])
  jax.tree.map(np.testing.assert_array_equal, params | {'blocks': blocks}, params_of_pre)
  run, run_pre = (quick_jit(functools.partial(apply, c)) for c in (config, pre))
  np.testing.assert_array_equal(run(params, TOKENS)[0], run_pre(params_of_pre, TOKENS)[0])


def test_two_parameters_a_block():
  assert num_parameters(tiny(connection='embedding_scalars')) == num_parameters(tiny()) + 2 * 2


@pytest.mark.parametrize(
  'changes',
  [
    {'connection': 'embedding_scalars:rate=0'},
    {'connection': 'embedding_scalars:rate=inf'},
    {'connection': 'embedding_scalars', 'parallel': True},
    {'connection': 'embedding_scalars', 'rezero': True},
    {'connection': 'embedding_scalars', 'attention_residual': 0.5},
  ],
)
def test_refused(changes):
  with pytest.raises(ConfigError, match=r'embedding_scalars|model\.parallel|model\.rezero'):
    tiny(**changes)
