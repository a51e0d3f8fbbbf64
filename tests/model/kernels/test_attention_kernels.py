import math
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, quick_jit

from model.kernels.blocked_attention import BLOCK_SIZE, blocked_attention
from model.kernels.dispatch import dot_product_attention
from model.kernels.plain_attention import attention_weights, plain_attention

# (B, T, H, K): around one and two blocks, and with the larger blocks; with and without padding.
SHAPES = [(1, 1, 2, 4), (2, 63, 1, 4), (1, 64, 3, 4), (2, 65, 2, 6), (1, 130, 1, 4), (1, 200, 2, 4), (1, 1025, 1, 4)]


def operands(shape, seed=0, size=2.0):
  rng = np.random.default_rng(seed)
  return [jnp.asarray(size * rng.normal(size=shape), jnp.float32) for _ in range(3)]


def reference_attention(q, k, v, causal):
  return reference.attend(*(np.asarray(x, np.float64) for x in (q, k, v)), causal)


@pytest.fixture
def gpu(monkeypatch):
  """Makes the dispatcher see a GPU, and records its calls of `jax.nn.dot_product_attention`, which runs anywhere."""
  calls, real = [], jax.nn.dot_product_attention

  def recorded(*args, **kwargs):
    calls.append(kwargs)
    return real(*args, **kwargs)

  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(jax.nn, 'dot_product_attention', recorded)
  return calls


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('shape', SHAPES)
def test_plain_and_blocked_attention_match_the_reference(shape, causal):
  qkv = operands(shape)
  expected = reference_attention(*qkv, causal)
  implementations = (plain_attention, blocked_attention, dot_product_attention)
  for out in quick_jit(lambda *qkv: [f(*qkv, causal) for f in implementations])(*qkv):
    assert distance(out, expected) < 2e-6


@pytest.mark.parametrize('causal', [True, False])
def test_attention_on_accelerators_matches_the_reference(causal, gpu):
  qkv = operands((2, 65, 2, 6))
  out = quick_jit(lambda *qkv: dot_product_attention(*qkv, causal))(*qkv)
  assert len(gpu) == 1
  assert distance(out, reference_attention(*qkv, causal)) < 2e-6


@pytest.mark.parametrize('kernel', [plain_attention, dot_product_attention])
@pytest.mark.parametrize('backend', ['cpu', 'gpu'])
def test_grouped_query_heads_share_keys_and_values(kernel, backend, request):
  if backend == 'gpu':
    request.getfixturevalue('gpu')
  q, k, v = operands((2, 65, 6, 8))
  few_k, few_v = k[:, :, :2], v[:, :, :2]
  out = quick_jit(lambda *qkv: kernel(*qkv, True))(q, few_k, few_v)
  shared = [few_k[:, :, head // 3] for head in range(6)], [few_v[:, :, head // 3] for head in range(6)]
  assert distance(out, reference_attention(q, *(jnp.stack(heads, 2) for heads in shared), True)) < 2e-6


@pytest.mark.parametrize(
  ('capability', 'dtype', 'width', 'supported'),
  [
    ('9.0', 'bfloat16', 64, True),
    ('8.0', 'bfloat16', 128, True),
    ('7.5', 'bfloat16', 64, False),
    ('gfx90a', 'bfloat16', 64, False),
    (None, 'bfloat16', 64, False),
    ('9.0', 'float32', 64, False),
    ('9.0', 'bfloat16', 60, False),
    ('9.0', 'bfloat16', 136, False),
  ],
)
def test_cudnn_is_used_exactly_where_it_is_supported(capability, dtype, width, supported, monkeypatch):
  calls = []
  device = SimpleNamespace() if capability is None else SimpleNamespace(compute_capability=capability)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(jax, 'devices', lambda: [device])
  monkeypatch.setattr(jax.nn, 'dot_product_attention', lambda *qkv, **kwargs: calls.append(kwargs))
  q = jnp.zeros((1, 8, 2, width), dtype)
  dot_product_attention(q, q, q, True)
  assert calls == [{'is_causal': True, 'implementation': 'cudnn' if supported else 'xla'}]


def gradients(kernels, qkv, causal):
  """The gradients with respect to q, k and v through each kernel."""
  cotangent = operands(qkv[0].shape, seed=1)[0]

  def gradient(kernel, qkv):
    return jax.grad(lambda qkv: jnp.sum(cotangent * kernel(*qkv, causal)))(qkv)

  return quick_jit(lambda qkv: [gradient(kernel, qkv) for kernel in kernels])(qkv)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('shape', [shape for shape in SHAPES if shape[1] > 1])
def test_gradients_of_blocked_attention(shape, causal):
  fast, plain = gradients((blocked_attention, plain_attention), operands(shape), causal)
  assert all(distance(f, p) < 1e-5 for f, p in zip(fast, plain, strict=True))


@pytest.mark.parametrize('causal', [True, False])
def test_blocked_attention_holds_no_array_over_all_pairs_of_positions(causal):
  def largest(kernel):
    gradient = jax.grad(lambda qkv: jnp.sum(kernel(*qkv, causal)))
    text = str(jax.make_jaxpr(gradient)(operands((1, 512, 1, 4))))
    return max(math.prod(map(int, shape.split(','))) for shape in re.findall(r'f32\[([\d,]+)\]', text))

  assert largest(plain_attention) == 512 * 512
  assert largest(blocked_attention) == max(512 * 4, BLOCK_SIZE * BLOCK_SIZE)


def test_gradients_of_attention_on_accelerators(gpu):
  fast, plain = gradients((dot_product_attention, plain_attention), operands((2, 65, 2, 6)), True)
  assert distance(fast, plain) < 1e-5


def test_attention_weights_are_causal_and_sum_to_one():
  q, k, _ = operands((2, 9, 2, 4))
  weights_BHTS = quick_jit(lambda q, k: attention_weights(q, k, causal=True))(q, k)
  np.testing.assert_allclose(weights_BHTS.sum(-1), 1, rtol=1e-6)
  np.testing.assert_array_equal(np.asarray(weights_BHTS) > 0, np.broadcast_to(np.tri(9, dtype=bool), (2, 2, 9, 9)))


@pytest.mark.parametrize('kernel', [plain_attention, blocked_attention])
def test_huge_logits_do_not_overflow(kernel):
  q, k, v = operands((1, 70, 2, 4), size=300.0)
  assert np.abs(np.einsum('BTHK,BSHK->BHTS', q, k)).max() > 1e5
  out = quick_jit(lambda q, k, v: kernel(q, k, v, True))(q, k, v)
  assert distance(out, reference_attention(q, k, v, True)) < 1e-3
  assert all(np.isfinite(gradient).all() for gradient in gradients([kernel], (q, k, v), True)[0])


@pytest.mark.parametrize('kernel', [plain_attention, blocked_attention])
def test_bfloat16_operands_with_a_float32_softmax(kernel):
  qkv = [x.astype(jnp.bfloat16) for x in operands((2, 70, 2, 16))]
  out = quick_jit(lambda *qkv: kernel(*qkv, True))(*qkv)
  assert out.dtype == jnp.bfloat16
  assert distance(out, reference_attention(*qkv, True)) < 1e-2


def test_gradients_of_blocked_attention_in_bfloat16():
  qkv = operands((2, 130, 2, 16), size=1.0)
  half = [x.astype(jnp.bfloat16) for x in qkv]
  fast = gradients([blocked_attention], half, True)[0]
  assert all(gradient.dtype == jnp.bfloat16 for gradient in fast)
  plain = gradients([plain_attention], [x.astype(jnp.float32) for x in half], True)[0]
  assert all(distance(f, p) < 1e-2 for f, p in zip(fast, plain, strict=True))


def test_attention_dropout_keeps_the_expectation():
  q, k, v = operands((1, 5, 2, 4), size=1.0)
  keys = jax.random.split(jax.random.key(0), 4000)
  drop = jax.vmap(lambda key: plain_attention(q, k, v, True, dropout=0.3, dropout_key=key))
  dropped = np.asarray(quick_jit(drop)(keys))
  deviation = np.std(dropped, 0) / len(keys) ** 0.5
  assert (np.abs(np.mean(dropped, 0) - reference_attention(q, k, v, True)) < 4.5 * deviation + 1e-6).all()
  # The first position attends only to itself: the output is its value over 0.7, or 0.
  first = dropped[:, 0, 0] / np.asarray(v)[0, 0]
  assert abs((first != 0).mean() - 0.7) < 0.03
  np.testing.assert_allclose(first[first != 0], 1 / 0.7, rtol=1e-5)


def test_attention_dropout_differs_by_key_sequence_and_head():
  q, k, v = (jnp.ones((3, 6, 2, 4)) for _ in range(3))  # constant, so that only dropout can make outputs differ
  drop = quick_jit(lambda key: plain_attention(q, k, v, True, dropout=0.5, dropout_key=key))
  outs = [np.asarray(drop(jax.random.key(seed))) for seed in (0, 1)]
  assert len({out[b, :, h].tobytes() for out in outs for b in range(3) for h in range(2)}) == 12
