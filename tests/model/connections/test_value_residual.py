import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from one_model import TOKENS, assert_matches, blocks, embedded, logits
from tiny_models import initial_params, model_params, quick_jit, random_stream, tiny

from model.connections import Site
from model.connections.value_residual import StreamAndValues, ValueResidual
from model.counts import num_parameters
from model.field_checks import ConfigError
from model.transformer import apply


def forward(params, config):
  x, values = embedded(params), []
  options = config.connection_options
  for p, norm, _, feed_forward in blocks(params, config):
    n = norm('attention_norm', x)
    q, k, v = reference.queries_keys_values(p['attention'], n, config)
    values.append(v)
    if len(values) > 1:
      own, first = (p['attention_own'], p['attention_first']) if options.learned else (options.own, options.first)
      v = own * v + first * values[0]
    out = reference.attend(q, k, v, config.causal).reshape(*n.shape[:2], -1)
    x = config.attention_residual * x + reference.linear(p['attention']['output'], out)
    x = x + feed_forward(norm('feed_forward_norm', x))
  return reference.norm(params['final_norm'], x, config.norm)


@pytest.mark.parametrize(
  'changes',
  [
    {'connection': 'value_residual'},
    {'connection': 'value_residual:own=0.7:first=-1.5', 'attention_residual': 0.5, 'use_bias': True},
    {'connection': 'value_residual:learned=true', 'num_heads': 4, 'num_kv_heads': 2},
  ],
  ids=str,
)
def test_logits_match_the_equations(changes):
  assert_matches(tiny(num_layers=3, **changes), forward)


def loss(config, params):
  return jnp.sum(jnp.square(apply(config, params, TOKENS)[0]))


@pytest.mark.parametrize('dtype', ['float32', pytest.param('bfloat16', marks=pytest.mark.slow)])
def test_without_the_first_values_it_is_pre_norm_bit_for_bit(dtype):
  config = tiny(connection='value_residual:own=1:first=0', dtype=dtype)
  params = model_params(config)
  run, expected = (
    quick_jit(jax.value_and_grad(functools.partial(loss, c)))(params) for c in (config, tiny(dtype=dtype))
  )
  jax.tree.map(np.testing.assert_array_equal, run, expected)


def test_the_first_block_has_its_own_values():
  config = tiny(connection='value_residual:own=3:first=5', num_layers=1)
  params = model_params(config)
  np.testing.assert_array_equal(logits(config, params), logits(tiny(num_layers=1), params))


@pytest.mark.parametrize('index', [1, 3])
def test_the_first_values_leave_a_branch_once_and_are_carried_on_the_skip_path(index):
  config = tiny(connection='value_residual:own=0.7:first=0.3')
  site = Site(jnp.int32(index), config.num_layers * 2)
  design = ValueResidual(config, 'attention', site)
  x, _ = random_stream(1, 3, 8)
  first, _ = random_stream(1, 3, 2, 4, seed=1)
  projected, _ = random_stream(1, 3, 2, 4, seed=2)
  state = StreamAndValues(x, first)

  def run(skip, branch, projected):
    return design.run(skip, branch, lambda x_BTD, values: values(projected).reshape(x_BTD.shape), site)[1]

  after, backward = jax.vjp(run, state, state, projected)
  up, _ = random_stream(1, 3, 2, 4, seed=3)
  out, _ = random_stream(1, 3, 8, seed=4)
  skip, branch, own = backward(StreamAndValues(out, up))
  if index == 1:
    np.testing.assert_array_equal(after.first, projected)
    assert not np.any(skip.first)
    assert not np.any(branch.first)
    np.testing.assert_allclose(own, out.reshape(up.shape) + up, rtol=1e-6)
  else:
    np.testing.assert_array_equal(after.first, first)
    np.testing.assert_array_equal(skip.first, up)
    np.testing.assert_allclose(branch.first, 0.3 * out.reshape(up.shape), rtol=1e-6)
    np.testing.assert_allclose(own, 0.7 * out.reshape(up.shape), rtol=1e-6)


def test_the_learned_factors_begin_as_the_options_and_those_of_the_first_block_have_no_effect():
  config = tiny(connection='value_residual:learned=true:first=0.25', num_layers=3)
  params = initial_params(config)
  np.testing.assert_array_equal(params['blocks']['attention_own'], [0.5, 0.5, 0.5])
  np.testing.assert_array_equal(params['blocks']['attention_first'], [0.25, 0.25, 0.25])
  assert num_parameters(config) == num_parameters(tiny(num_layers=3)) + 2 * 3
  assert num_parameters(tiny(connection='value_residual')) == num_parameters(tiny())
  gradients = quick_jit(jax.grad(functools.partial(loss, config)))(params)['blocks']
  for name in ('attention_own', 'attention_first'):
    np.testing.assert_array_equal(np.asarray(gradients[name]) != 0, [False, True, True])


@pytest.mark.parametrize(
  ('changes', 'reason'),
  [
    ({'connection': 'value_residual:own=nan'}, 'own=nan: must be finite'),
    ({'connection': 'value_residual:first=inf'}, 'first=inf: must be finite'),
    ({'connection': 'value_residual:frist=1'}, "did you mean 'first'"),
    ({'connection': 'value_residual', 'parallel': True}, 'model.parallel requires'),
  ],
  ids=str,
)
def test_refusals(changes, reason):
  with pytest.raises(ConfigError, match=reason):
    tiny(**changes)
