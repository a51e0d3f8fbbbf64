import re

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
import stream_reference
from tiny_models import distance, float64, initial_params, model_params, quick_jit, tiny

from model.config import ConfigError
from model.counts import flops_per_token, matmul_parameters, num_parameters
from model.transformer import apply

TOKENS = jnp.array([[3, 1, 4], [1, 5, 9]])


def logits(config, params):
  return quick_jit(lambda params: apply(config, params, TOKENS)[0])(params)


def gru(index, p, x, F):
  """Parisotto et al. 2019, section 3.2."""
  y = np.maximum(F(reference.norm(p['norm'], x, 'rms')), 0)
  r = reference.sigmoid(reference.linear(p['reset_y'], y) + reference.linear(p['reset_x'], x))
  z = reference.sigmoid(reference.linear(p['update_y'], y) + reference.linear(p['update_x'], x) - p['gate_bias'])
  h = np.tanh(reference.linear(p['candidate_y'], y) + reference.linear(p['candidate_x'], r * x))
  return (1 - z) * x + z * h


def highway(index, p, x, F):
  y = np.maximum(F(reference.norm(p['norm'], x, 'rms')), 0)
  carry = reference.sigmoid(reference.linear(p['update_x'], x) + p['gate_bias'])
  return carry * x + (1 - carry) * y


@pytest.mark.parametrize(('gate', 'sublayer'), [('gru', gru), ('highway', highway)])
def test_logits_match_the_equations(gate, sublayer):
  config = tiny(connection=f'gated_residual:gate={gate}')
  params = model_params(config)
  expected = stream_reference.logits(float64(params), TOKENS, config, sublayer)
  assert distance(logits(config, params), expected) < 3e-6


def skip_alone(params, config):
  return stream_reference.logits(float64(params), TOKENS, config, lambda index, p, x, F: x)


@pytest.mark.slow
@pytest.mark.parametrize('gate', ['gru', 'highway'])
def test_it_starts_near_the_skip_path_alone(gate):
  """With a large bias exactly; at the default bias nearer than without one."""
  config, distances = tiny(connection=f'gated_residual:gate={gate}', d_model=16), {}
  params = initial_params(config)
  run = quick_jit(lambda params: apply(config, params, TOKENS)[0])
  for bias in (0, 2, 40):
    gates = {f'{name}_gate_bias': jnp.full((2, 16), 1.0 * bias) for name in ('attention', 'feed_forward')}
    changed = params | {'blocks': params['blocks'] | gates}
    distances[bias] = distance(run(changed), skip_alone(changed, config))
  assert distances[40] < 1e-6
  assert 1e-6 < distances[2] < 0.6 * distances[0]


def test_initial_values():
  config = tiny(connection='gated_residual', d_model=32)
  blocks = initial_params(config)['blocks']
  for sublayer in ('attention', 'feed_forward'):
    np.testing.assert_array_equal(blocks[f'{sublayer}_gate_bias'], np.full((2, 32), 2.0))
    for name in ('update_x', 'update_y', 'reset_x', 'reset_y', 'candidate_x', 'candidate_y'):
      kernel = np.asarray(blocks[f'{sublayer}_{name}']['kernel'])
      assert kernel.shape == (2, 32, 32)
      assert kernel.std() == pytest.approx(32**-0.5, rel=0.1)


@pytest.mark.parametrize(('gate', 'kernels'), [('gru', 6), ('highway', 1)])
def test_parameters_and_flops_beyond_those_of_pre(gate, kernels):
  config, plain = tiny(connection=f'gated_residual:gate={gate}'), tiny()
  extra = 4 * kernels * 8 * 8  # four sublayers
  assert num_parameters(config) - num_parameters(plain) == extra + 4 * 8
  assert matmul_parameters(config) - matmul_parameters(plain) == extra
  assert flops_per_token(config, 7) - flops_per_token(plain, 7) == 6 * extra


def test_gates_and_stream_are_float32_when_products_are_bfloat16():
  config = tiny(connection='gated_residual', feed_forward='relu', dtype='bfloat16')
  exact = tiny(connection='gated_residual', feed_forward='relu')
  params = model_params(config)
  program = str(jax.make_jaxpr(lambda params: apply(config, params, TOKENS)[0])(params))
  assert len(re.findall(r'f32\[[^]]*\] = (?:logistic|tanh)', program)) == 2 * 3  # r, z and the candidate
  assert not re.search(r'bf16\[[^]]*\] = (?:logistic|tanh)', program)
  half = logits(config, params)
  assert half.dtype == jnp.float32
  assert 1e-4 < distance(half, logits(exact, params)) < 0.05


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'connection': 'gated_residual:gate=lstm'}, "gated_residual:gate='lstm': must be one of gru, highway"),
    ({'connection': 'gated_residual:bias=inf'}, 'must be a finite number'),
    ({'connection': 'gated_residual', 'parallel': True}, r'model\.parallel requires'),
    ({'connection': 'gated_residual', 'rezero': True}, r'model\.rezero requires'),
    ({'connection': 'gated_residual', 'attention_residual': 0.5}, 'has no residual scale'),
  ],
)
def test_refusals(changes, message):
  with pytest.raises(ConfigError, match=message):
    tiny(**changes)
