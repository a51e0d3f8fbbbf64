"""The sink of attention, a learned logit with the value 0, in every implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from test_attention_kernels import SHAPES, operands
from tiny_models import distance, quick_jit

from model.forward_statistics import attention_statistics
from model.kernels.blocked_attention import blocked_attention
from model.kernels.dispatch import dot_product_attention
from model.kernels.plain_attention import attention_weights, plain_attention


def sinks(heads):
  return jnp.asarray(np.random.default_rng(9).normal(size=heads) + 1, jnp.float32)


def on_gpu(q, k, v, causal, documents_BT=None, sink_H=None):
  """`dot_product_attention` as it would be on a GPU; the implementation that it then chooses runs anywhere."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, 'default_backend', lambda: 'gpu')
    return dot_product_attention(q, k, v, causal, documents_BT, sink_H=sink_H)


def dispatched(q, k, v, causal, documents_BT=None, sink_H=None):
  return dot_product_attention(q, k, v, causal, documents_BT, sink_H=sink_H)


def plain(q, k, v, causal, documents_BT, sink_H):
  return plain_attention(q, k, v, causal, documents_BT, sink_H=sink_H)


KERNELS = {'plain': plain, 'blocked': blocked_attention, 'cpu': dispatched, 'gpu': on_gpu}


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('shape', [SHAPES[1], SHAPES[3], SHAPES[5]])
def test_every_implementation_matches_the_reference(shape, causal):
  qkv, sink = operands(shape), sinks(shape[2])
  expected = reference.attend(*(np.asarray(x, np.float64) for x in qkv), causal, np.asarray(sink, np.float64))
  for out in quick_jit(lambda *qkv: [f(*qkv, causal, None, sink) for f in KERNELS.values()])(*qkv):
    assert distance(out, expected) < 2e-6


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('shape', [(2, 65, 2, 6)])
def test_gradients_of_blocked_attention_are_those_of_the_definition(shape, causal):
  """With respect to q, k, v and the sink, within documents."""
  rng = np.random.default_rng(1)
  cotangent = operands(shape, seed=1)[0]
  documents = jnp.asarray(np.sort(rng.integers(3, size=shape[:2]), 1), jnp.int32)

  def gradient(kernel, documents_BT, *arguments):
    return jax.grad(lambda q, k, v, sink: jnp.sum(cotangent * kernel(q, k, v, causal, documents_BT, sink)), range(4))(
      *arguments
    )

  arguments = (*operands(shape), sinks(shape[2]))
  found = quick_jit(
    lambda *arguments: [[gradient(f, d, *arguments) for f in (blocked_attention, plain)] for d in (None, documents)]
  )(*arguments)
  for fast, definition in found:
    assert all(distance(f, p) < 1e-5 for f, p in zip(fast, definition, strict=True))


def test_the_gradient_of_the_sink_against_differences_of_the_reference():
  q, k, v = operands((2, 70, 3, 4))
  sink, exact = sinks(3), [np.asarray(x, np.float64) for x in (q, k, v)]

  def value(sink):
    return np.sin(reference.attend(*exact, True, sink)).sum()

  def differentiable(kernel):
    return lambda sink: jnp.sum(jnp.sin(kernel(q, k, v, True, None, sink)))

  for kernel in (blocked_attention, plain):
    gradient = quick_jit(jax.grad(differentiable(kernel)))(sink)
    for h in range(3):
      step = 1e-5 * (np.arange(3) == h)
      base = np.asarray(sink, np.float64)
      assert gradient[h] == pytest.approx((value(base + step) - value(base - step)) / 2e-5, rel=1e-4)


@pytest.mark.parametrize('kernel', KERNELS)
def test_a_sink_of_minus_infinity_is_none(kernel):
  """The same output, and gradients that are finite: 0 for the sink."""
  qkv = operands((2, 130, 2, 4))

  def outputs(sink):
    def loss(sink, *qkv):
      out = KERNELS[kernel](*qkv, True, None, sink)
      return jnp.sum(jnp.sin(out)), out

    return jax.grad(loss, (1, 2, 3), has_aux=True)(sink, *qkv)

  without, there = quick_jit(lambda: outputs(None))(), quick_jit(lambda: outputs(jnp.full(2, -jnp.inf)))()
  for a, b in zip(jax.tree.leaves(without), jax.tree.leaves(there), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('kernel', ['plain', pytest.param('blocked', marks=pytest.mark.slow)])
def test_a_sink_of_a_huge_logit_takes_all_the_attention(kernel):
  q, k, v = operands((1, 70, 2, 4))
  gradient = jax.grad(lambda sink, v: jnp.sum(KERNELS[kernel](q, k, v, True, None, sink)), (0, 1))
  sink = jnp.array([1e5, -1e5])
  out = KERNELS[kernel](q, k, v, True, None, sink)
  assert (np.asarray(out[:, :, 0]) == 0).all()
  assert distance(out[:, :, 1], plain_attention(q, k, v, True)[:, :, 1]) < 2e-6
  assert all(np.isfinite(g).all() for g in gradient(sink, v))


def test_grouped_query_heads_have_a_sink_each():
  q, k, v = operands((2, 9, 4, 4))
  few_k, few_v, sink = k[:, :, :2], v[:, :, :2], sinks(4)
  out = dispatched(q, few_k, few_v, True, None, sink)
  repeated = [np.repeat(np.asarray(x, np.float64), 2, 2) for x in (few_k, few_v)]
  assert distance(out, reference.attend(np.asarray(q, np.float64), *repeated, True, np.asarray(sink))) < 2e-6


def test_bfloat16_operands():
  qkv = [x.astype(jnp.bfloat16) for x in operands((2, 70, 2, 16))]
  sink = sinks(2)
  expected = reference.attend(*(np.asarray(x, np.float64) for x in qkv), True, np.asarray(sink))
  for kernel in (blocked_attention, plain):
    out = kernel(*qkv, True, None, sink)
    assert out.dtype == jnp.bfloat16
    assert distance(out, expected) < 1e-2


def test_the_sink_takes_its_weight_from_every_key_alike():
  """So that the mass on the first token falls by the weight of the sink."""
  q, k, _ = operands((2, 9, 2, 4))
  sink = sinks(2)
  without, there = attention_weights(q, k, True), attention_weights(q, k, True, None, sink)
  missing = 1 - there.sum(-1, keepdims=True)
  assert (np.asarray(missing) > 0).all()
  np.testing.assert_allclose(there, without * (1 - missing), atol=1e-6)


def test_dropout_does_not_change_the_weight_of_the_sink():
  """A dropped weight is not shared out among the others: the kept ones are those of the sink over 1 - rate."""
  q, k, _ = operands((1, 5, 2, 5), size=1.0)
  v = jnp.broadcast_to(jnp.eye(5)[None, :, None], (1, 5, 2, 5))  # the output is the row of weights
  sink = sinks(2)
  out = dot_product_attention(q, k, v, True, None, 0.5, jax.random.key(0), sink)
  weights = np.asarray(attention_weights(q, k, True, None, sink)).swapaxes(1, 2)
  kept = np.asarray(out) > 0
  assert kept.any()
  np.testing.assert_allclose(np.asarray(out)[kept], 2 * weights[kept], rtol=1e-5)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('shape', [(2, 5, 3, 4), (1, 70, 2, 4)])
def test_statistics_count_the_sink_as_a_key(shape, causal):
  rng = np.random.default_rng(0)
  q, k = 2 * rng.normal(size=(2, *shape))
  sink = np.array([0.0, 50.0, 1.0])[: shape[2]]
  stats = quick_jit(lambda *qk: attention_statistics(*qk, causal, None, jnp.asarray(sink, jnp.float32)))(
    np.float32(q), np.float32(k)
  )
  entropy, largest = reference.entropy_and_largest(q, k, causal, sink)
  np.testing.assert_allclose(stats['mean']['attention_entropy'], entropy, rtol=1e-5, atol=1e-7)
  np.testing.assert_allclose(stats['max']['largest_logit'], largest, rtol=1e-5)
  assert stats['max']['largest_logit'][1] == 50
