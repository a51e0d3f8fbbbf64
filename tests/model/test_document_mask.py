"""Attention within documents: the plain definition, in blocks, and on accelerators."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, model_params, quick_jit, tiny

from model import attention
from model.forward_statistics import attention_statistics
from model.kernels import blocked_attention
from model.kernels.dispatch import dot_product_attention
from model.kernels.plain_attention import plain_attention
from model.transformer import apply, zero_taps

LENGTH, FIRST = 9, 4  # a sequence of two documents, of 4 and 5 positions
DOCUMENTS = jnp.array([[0] * FIRST + [1] * (LENGTH - FIRST)])
TOKENS = jnp.array([[3, 1, 4, 1, 5, 9, 2, 6, 5]])
KERNELS = ['plain', 'blocked', 'xla']


def on_gpu(q, k, v, causal, documents_BT):
  """`dot_product_attention` as it would be on a GPU; the implementation that it then chooses runs anywhere."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, 'default_backend', lambda: 'gpu')
    return dot_product_attention(q, k, v, causal, documents_BT)


IMPLEMENTATIONS = {'plain': plain_attention, 'blocked': blocked_attention.blocked_attention, 'xla': on_gpu}


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch):
  """The attention kernel of the model, with blocks of 3 positions, so that a document ends within one."""
  monkeypatch.setattr(blocked_attention, 'BLOCK_SIZE', 3)
  if request.param == 'plain':
    monkeypatch.setattr(attention, 'dot_product_attention', plain_attention)
  elif request.param == 'xla':
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  return request.param


def logits_of(config, params, tokens, documents=None):
  return quick_jit(lambda params, tokens: apply(config, params, tokens, documents_BT=documents)[0])(params, tokens)


@pytest.mark.parametrize(
  'changes',
  [{}, pytest.param({'position': 'none', 'num_heads': 4, 'num_kv_heads': 2, 'qk_norm': True}, marks=pytest.mark.slow)],
)
def test_each_document_has_the_same_logits_as_on_its_own(kernel, changes):
  config = tiny(**changes)
  params = model_params(config)
  together = logits_of(config, params, TOKENS, DOCUMENTS)
  alone = [logits_of(config, params, tokens) for tokens in (TOKENS[:, :FIRST], TOKENS[:, FIRST:])]
  assert distance(together, jnp.concatenate(alone, 1)) < 1e-6
  unmasked = logits_of(config, params, TOKENS)
  assert distance(together[:, FIRST:], unmasked[:, FIRST:]) > 0.05


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'causal': False},
    pytest.param({'position': 'learned'}, marks=pytest.mark.slow),
    pytest.param({'parallel': True, 'remat': True}, marks=pytest.mark.slow),
  ],
)
def test_no_gradient_crosses_a_document_boundary(kernel, changes):
  config = tiny(**({'vocab_size': LENGTH} | changes))
  params = model_params(config)

  @quick_jit
  def gradient(table, documents):
    def logits(table):
      changed = params | {'embedding': params['embedding'] | {'token': table}}
      return jnp.sum(jnp.cos(apply(config, changed, jnp.arange(LENGTH)[None], documents_BT=documents)[0]), (0, 2))

    return jnp.sum(jnp.abs(jax.jacrev(logits)(table)), -1)  # (position, token): each token is at one position

  depends = np.asarray(gradient(params['embedding']['token'], DOCUMENTS)) > 0
  same = np.asarray(DOCUMENTS[0][:, None] == DOCUMENTS[0])
  np.testing.assert_array_equal(depends, same if not config.causal else same & np.tri(LENGTH, dtype=bool))


def test_positions_count_from_the_start_of_the_sequence(kernel):
  """With learned positions, the second document therefore has different logits than on its own."""
  config = tiny(position='learned')
  params = model_params(config)
  together = logits_of(config, params, TOKENS, DOCUMENTS)
  first, second = (logits_of(config, params, tokens) for tokens in (TOKENS[:, :FIRST], TOKENS[:, FIRST:]))
  assert distance(together[:, :FIRST], first) < 1e-6
  assert distance(together[:, FIRST:], second) > 0.05


def reference_attention(q, k, v, documents, causal):
  """One query at a time, over the keys it may attend to."""
  out = np.zeros(q.shape)
  for b, t, h in np.ndindex(q.shape[:3]):
    keys = [s for s in range(t + 1 if causal else q.shape[1]) if documents[b, s] == documents[b, t]]
    weights = reference.softmax(k[b, keys, h] @ q[b, t, h] / q.shape[-1] ** 0.5)
    out[b, t, h] = weights @ v[b, keys, h]
  return out


def operands(shape):
  rng = np.random.default_rng(0)
  documents = np.sort(rng.integers(4, size=shape[:2]), 1)
  documents[0] = rng.integers(3, size=shape[1])  # a document need not be contiguous
  return [jnp.asarray(2 * rng.normal(size=shape), jnp.float32) for _ in range(3)], jnp.asarray(documents, jnp.int32)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('shape', [(2, 9, 2, 4), (2, 130, 2, 4)])
def test_every_implementation_matches_the_reference(shape, causal):
  qkv, documents = operands(shape)
  expected = reference_attention(*(np.asarray(x, np.float64) for x in qkv), np.asarray(documents), causal)
  outputs = quick_jit(lambda *qkv: {name: f(*qkv, causal, documents) for name, f in IMPLEMENTATIONS.items()})(*qkv)
  for name, out in outputs.items():
    assert distance(out, expected) < 2e-6, name


@pytest.mark.parametrize('causal', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradients_of_every_implementation(causal):
  qkv, documents = operands((2, 130, 2, 4))
  cotangent = jnp.cos(jnp.arange(qkv[0].size).reshape(qkv[0].shape))

  def gradients(f):
    return jax.grad(lambda qkv: jnp.sum(cotangent * f(*qkv, causal, documents)))(qkv)

  found = quick_jit(lambda: {name: gradients(f) for name, f in IMPLEMENTATIONS.items()})()
  for name in ('blocked', 'xla'):
    assert all(distance(f, p) < 1e-5 for f, p in zip(found[name], found['plain'], strict=True)), name


def test_attention_statistics_within_documents():
  (q, k, _), documents = operands((2, 70, 2, 4))  # two blocks of queries
  stats = quick_jit(lambda q, k: attention_statistics(q, k, True, documents))(q, k)
  q, k, documents = (np.asarray(x) for x in (q, k, documents))
  entropies, largest = np.zeros((2, 70, 2)), np.full(2, -np.inf)
  for b, t, h in np.ndindex(2, 70, 2):
    keys = [s for s in range(t + 1) if documents[b, s] == documents[b, t]]
    logits = k[b, keys, h].astype(float) @ q[b, t, h] / 2
    weights = reference.softmax(logits)
    entropies[b, t, h], largest[h] = -np.sum(weights * np.log(weights)), max(largest[h], logits.max())
  np.testing.assert_allclose(stats['mean']['attention_entropy'], entropies.mean((0, 1)), rtol=1e-5)
  np.testing.assert_allclose(stats['max']['largest_logit'], largest, rtol=1e-5)


@pytest.mark.slow
def test_scan_unrolled_remat_and_vmap_agree():
  config = tiny()
  params = model_params(config)
  tokens, documents = jnp.concatenate([TOKENS, TOKENS[:, ::-1]]), jnp.concatenate([DOCUMENTS, 0 * DOCUMENTS])

  def run(apply_it, **changes):
    def loss(params, taps):
      logits = apply_it(functools.partial(apply, dataclasses.replace(config, **changes), params), taps)
      return jnp.sum(jnp.cos(logits)), logits

    (_, logits), gradients = quick_jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, zero_taps(config))
    return logits, gradients

  def at_once(run, taps):
    return run(tokens, taps, documents_BT=documents)[0]

  def mapped(run, taps):
    one = lambda tokens, documents: run(tokens[None], taps, documents_BT=documents[None], full_stats=True)[0][0]  # noqa: E731
    return jax.vmap(one)(tokens, documents)

  scanned = run(at_once)
  for other in (run(at_once, unroll=2), run(at_once, remat=True), run(mapped)):
    assert all(distance(a, b) < 1e-5 for a, b in zip(other, scanned, strict=True))
