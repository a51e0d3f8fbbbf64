import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import ATTENTION_SETTINGS, distance, filled, quick_jit, random_stream, tiny

from model.attention import Attention
from model.norm import make_norm


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('setting', ATTENTION_SETTINGS)
def test_attention_by_hand(setting, causal):
  config = tiny(causal=causal, **ATTENTION_SETTINGS[setting])
  module, params = filled(Attention(config))
  x, exact = random_stream(2, 7, 8)
  assert distance(quick_jit(module)(3 * x), reference.attention(params, 3 * exact, config)) < 2e-6


def test_attention_over_several_query_blocks_by_hand():
  config = tiny(num_heads=4, num_kv_heads=2)
  module, params = filled(Attention(config))
  x, exact = random_stream(1, 130, 8)
  assert distance(quick_jit(module)(x), reference.attention(params, exact, config)) < 2e-6


def test_shapes_of_the_kernels():
  _, params = filled(Attention(tiny(num_heads=6, num_kv_heads=2, head_dim=10, qk_norm=True)))
  shapes = {name: tuple(part['kernel'].shape) for name, part in params.items() if 'kernel' in part}
  assert shapes == {'query': (8, 60), 'key': (8, 20), 'value': (8, 20), 'output': (60, 8)}
  assert params['query_norm']['gain'].shape == params['key_norm']['gain'].shape == (10,)


def raw_logits(module, x):
  q_BTHK, k_BTHK, _ = module.queries_keys_values(x)
  return np.einsum('BTHK,BSHK->BHTS', q_BTHK, k_BTHK)


def test_a_stream_twice_as_large_makes_logits_four_times_as_large():
  module, _ = filled(Attention(tiny(position='none')))
  x, _ = random_stream(2, 6, 8)
  np.testing.assert_allclose(raw_logits(module, 2 * x), 4 * raw_logits(module, x), rtol=1e-6)


@pytest.mark.parametrize('kind', ['rms', 'layer'])
def test_under_a_norm_logits_do_not_follow_the_stream(kind):
  module, _ = filled(Attention(tiny(position='none')))
  norm, _ = filled(make_norm(kind, 8, False))
  x, _ = random_stream(2, 6, 8)
  assert distance(raw_logits(module, norm(2 * x)), raw_logits(module, norm(x))) < 1e-5
  assert distance(raw_logits(module, norm(2e-3 * x)), raw_logits(module, norm(1e-3 * x))) > 0.1  # but for epsilon


def test_without_queries_a_position_reads_the_mean_of_what_it_sees():
  module, params = filled(Attention(tiny()))
  module.query.kernel[...] = jnp.zeros((8, 8))
  x, exact = random_stream(1, 6, 8)
  values = reference.linear(params['value'], exact)[0]
  means = np.array([values[: t + 1].mean(0) for t in range(6)])
  np.testing.assert_allclose(module(x)[0], reference.linear(params['output'], means), atol=1e-5)


def test_bfloat16_operands_of_the_product():
  module, _ = filled(Attention(tiny(dtype='bfloat16', qk_norm=True)))
  x, _ = random_stream(1, 6, 8)
  assert {part.dtype for part in module.queries_keys_values(x)} == {jnp.dtype('bfloat16')}
