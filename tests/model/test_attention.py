import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import ATTENTION_SETTINGS, distance, filled, quick_jit, random_stream, tiny

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
