import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import ATTENTION_SETTINGS, distance, filled, initial_params, quick_jit, random_stream, tiny

from model import flops_per_token, num_parameters
from model.attention import Attention
from model.norm import make_norm


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('setting', ATTENTION_SETTINGS)
def test_attention_matches_the_reference(setting, causal):
  config = tiny(causal=causal, **ATTENTION_SETTINGS[setting])
  module, params = filled(Attention(config))
  x, exact = random_stream(2, 7, 8)
  assert distance(quick_jit(module)(3 * x), reference.attention(params, 3 * exact, config)) < 2e-6


def test_attention_over_several_query_blocks_matches_the_reference():
  config = tiny(num_heads=4, num_kv_heads=2)
  module, params = filled(Attention(config))
  x, exact = random_stream(1, 130, 8)
  assert distance(quick_jit(module)(x), reference.attention(params, exact, config)) < 2e-6


def test_kernel_shapes():
  _, params = filled(Attention(tiny(num_heads=6, num_kv_heads=2, head_dim=10, qk_norm=True)))
  shapes = {name: tuple(part['kernel'].shape) for name, part in params.items() if 'kernel' in part}
  assert shapes == {'query': (8, 60), 'key': (8, 20), 'value': (8, 20), 'output': (60, 8)}
  assert params['query_norm']['gain'].shape == params['key_norm']['gain'].shape == (10,)


def test_a_function_replaces_the_values():
  module, _ = filled(Attention(tiny(num_heads=4, num_kv_heads=2)))
  x, _ = random_stream(2, 6, 8)
  shapes = []

  def doubled(v_BSHK):
    shapes.append(v_BSHK.shape)
    return 2 * v_BSHK

  np.testing.assert_array_equal(quick_jit(lambda x: module(x, values=doubled))(x), 2 * quick_jit(module)(x))
  assert shapes == [(2, 6, 2, 2)]


def raw_logits(module, x):
  q_BTHK, k_BTHK, _ = module.queries_keys_values(x)
  return np.einsum('BTHK,BSHK->BHTS', q_BTHK, k_BTHK)


def test_doubling_the_stream_quadruples_the_logits():
  module, _ = filled(Attention(tiny(position='none')))
  x, _ = random_stream(2, 6, 8)
  np.testing.assert_allclose(raw_logits(module, 2 * x), 4 * raw_logits(module, x), rtol=1e-6)


@pytest.mark.parametrize('kind', ['rms', 'layer'])
def test_under_a_norm_logits_do_not_depend_on_the_scale_of_the_stream(kind):
  module, _ = filled(Attention(tiny(position='none')))
  norm, _ = filled(make_norm(kind, 8, False))
  x, _ = random_stream(2, 6, 8)
  assert distance(raw_logits(module, norm(2 * x)), raw_logits(module, norm(x))) < 1e-5
  # Only through epsilon, where the stream is small.
  assert distance(raw_logits(module, norm(2e-3 * x)), raw_logits(module, norm(1e-3 * x))) > 0.1


def test_with_zero_queries_attention_averages_the_values():
  module, params = filled(Attention(tiny()))
  module.query.kernel[...] = jnp.zeros((8, 8))
  x, exact = random_stream(1, 6, 8)
  values = reference.linear(params['value'], exact)[0]
  means = np.array([values[: t + 1].mean(0) for t in range(6)])
  np.testing.assert_allclose(module(x)[0], reference.linear(params['output'], means), atol=1e-5)


def test_queries_keys_and_values_are_in_the_compute_dtype():
  module, _ = filled(Attention(tiny(dtype='bfloat16', qk_norm=True)))
  x, _ = random_stream(1, 6, 8)
  assert {part.dtype for part in module.queries_keys_values(x)} == {jnp.dtype('bfloat16')}


def test_a_gate_of_one_and_a_sink_of_minus_infinity_are_the_baseline():
  x, _ = random_stream(2, 7, 8)
  plain, params = filled(Attention(tiny(use_bias=True)))
  gated, more = filled(Attention(tiny(use_bias=True, attention_gate=True, attention_sink=True)))
  assert set(more) == {*params, 'gate', 'sink'}
  assert (more['gate']['kernel'].shape, more['sink'].shape) == ((8, 8), (2,))
  for name in params:
    for part in ('kernel', 'bias'):
      getattr(getattr(gated, name), part)[...] = getattr(getattr(plain, name), part)[...]
  assert distance(gated(x), plain(x)) > 0.1
  gated.gate.kernel[...], gated.gate.bias[...] = jnp.zeros((8, 8)), jnp.full(8, 50.0)
  gated.sink[...] = jnp.full(2, -jnp.inf)
  assert distance(gated(x), plain(x)) < 1e-6
  gated.gate.bias[...] = jnp.full(8, -200.0)  # a gate of 0: only the bias of the output projection is left
  np.testing.assert_array_equal(gated(x), jnp.broadcast_to(plain.output.bias[...], (2, 7, 8)))


def test_initial_values_of_gate_and_sink():
  config = tiny(attention_gate=True, attention_sink=True, d_model=64, num_heads=4)
  blocks = initial_params(config)['blocks']['attention']
  np.testing.assert_array_equal(blocks['sink'], np.zeros((2, 4)))
  assert blocks['gate']['kernel'].std() == pytest.approx(1 / 8, rel=0.05)
  baseline = initial_params(tiny(d_model=64, num_heads=4))['blocks']['attention']
  for name in baseline:  # the other parameters are those of the baseline
    np.testing.assert_array_equal(blocks[name]['kernel'], baseline[name]['kernel'])


def test_gate_and_sink_are_counted():
  config, gated = tiny(num_heads=4, head_dim=4), tiny(num_heads=4, head_dim=4, attention_gate=True, attention_sink=True)
  assert num_parameters(gated) - num_parameters(config) == 2 * (8 * 16 + 4)
  assert flops_per_token(gated, 9) - flops_per_token(config, 9) == 6 * 2 * 8 * 16
