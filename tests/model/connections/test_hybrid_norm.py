import numpy as np
import numpy_reference as reference
import pytest
from one_model import assert_matches, blocks, embedded, logits
from tiny_models import distance, initial_params, model_params, tiny

from model.counts import num_parameters
from model.field_checks import ConfigError
from model.transformer import param_shapes


def hybrid_norm(params, config):
  x = embedded(params)
  for p, norm, attention, feed_forward in blocks(params, config):
    assert {'query_norm', 'key_norm', 'value_norm'} <= set(p['attention'])  # so the reference norms all three
    u = x + attention(x)
    if config.connection_options.shared:
      n = norm('feed_forward_norm', u)
      x = n + feed_forward(n)
    else:
      x = norm('feed_forward_norm', u + feed_forward(u))
  return reference.norm(params['ends']['norm'], x, config.norm) if config.connection_options.shared else x


@pytest.mark.parametrize(
  'more',
  [
    pytest.param({}, marks=pytest.mark.slow),
    pytest.param({'norm': 'layer', 'use_bias': True}, marks=pytest.mark.slow),
    {'num_heads': 4, 'num_kv_heads': 2},
  ],
  ids=str,
)
@pytest.mark.parametrize('connection', ['hybrid_norm', 'hybrid_norm:shared=true'])
def test_logits_match_the_equations(connection, more):
  assert_matches(tiny(connection=connection, num_layers=3, **more), hybrid_norm)


@pytest.mark.parametrize(
  'name', [pytest.param('query', marks=pytest.mark.slow), pytest.param('key', marks=pytest.mark.slow), 'value']
)
def test_the_scale_of_queries_keys_and_values_has_no_effect(name):
  config = tiny(connection='hybrid_norm')
  params = model_params(config)
  expected = logits(config, params)
  params['blocks']['attention'][name]['kernel'] *= 8  # far from epsilon
  assert distance(logits(config, params), expected) < 1e-3


@pytest.mark.parametrize(('connection', 'final'), [('hybrid_norm', 0), ('hybrid_norm:shared=true', 1)])
def test_parameters_and_initial_values(connection, final):
  config = tiny(connection=connection)
  layers, width, head = 2, 8, 4
  assert num_parameters(config) == num_parameters(tiny(connection='none')) + layers * (width + 3 * head) + final * width
  params = initial_params(config)
  for name in ('query_norm', 'key_norm', 'value_norm'):
    np.testing.assert_array_equal(params['blocks']['attention'][name]['gain'], np.ones((layers, head)))
  assert 'attention_norm' not in params['blocks']


@pytest.mark.parametrize(('qk_norm', 'norms'), [(False, set()), (True, {'query_norm', 'key_norm'})])
def test_other_designs_norm_queries_and_keys_with_qk_norm_only(qk_norm, norms):
  for connection in ('pre', 'value_residual', 'b2t'):
    parts = set(param_shapes(tiny(connection=connection, qk_norm=qk_norm))['blocks']['attention'])
    assert parts == {'query', 'key', 'value', 'output'} | norms


@pytest.mark.parametrize(
  ('changes', 'reason'),
  [
    ({'qk_norm': True}, 'model.qk_norm must be false'),
    ({'feed_forward_residual': 0.0}, 'connection=hybrid_norm has no'),
    ({'rezero': True}, 'requires model.connection='),
    ({'parallel': True}, 'requires model.connection='),
  ],
  ids=str,
)
def test_refusals(changes, reason):
  with pytest.raises(ConfigError, match=reason):
    tiny(connection='hybrid_norm', **changes)
