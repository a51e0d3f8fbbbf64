"""Attention confined to documents: by definition, in blocks, and in the form for accelerators."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, model_params, quick_jit, tiny

from model import attention_kernels, blocked_attention
from model.attention_kernels import attention_statistics, plain_attention
from model.transformer import apply, zero_taps

LENGTH, FIRST = 9, 4  # a window of two documents, of 4 and 5 positions
DOCUMENTS = jnp.array([[0] * FIRST + [1] * (LENGTH - FIRST)])
TOKENS = jnp.array([[3, 1, 4, 1, 5, 9, 2, 6, 5]])
KERNELS = ['plain', 'blocked', 'xla']
in_blocks = blocked_attention.blocked_attention


def on_gpu(q, k, v, causal, documents=None):
  """`attention` as it is where it believes to be on a GPU; what it then calls runs anywhere."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, 'default_backend', lambda: 'gpu')
    return attention_kernels.attention(q, k, v, causal, documents)


def plain(q, k, v, causal, documents=None):
  return plain_attention(q, k, v, causal, documents=documents)


FORMS = {'plain': plain, 'blocked': in_blocks, 'xla': on_gpu}


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch):
  """The kernel of the model; its blocks are of 3 positions, so that a document ends within one."""
  monkeypatch.setattr(blocked_attention, 'BLOCK', 3)
  if request.param == 'plain':
    monkeypatch.setattr(attention_kernels, 'attention', plain)
  elif request.param == 'xla':
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  return request.param


def logits_of(config, params, tokens, documents=None):
  return quick_jit(lambda params, tokens: apply(config, params, tokens, documents_BT=documents)[0])(params, tokens)


@pytest.mark.parametrize('changes', [{}, {'position': 'none', 'num_heads': 4, 'num_kv_heads': 2, 'qk_norm': True}])
def test_each_document_of_a_window_has_the_logits_it_has_alone(kernel, changes):
  config = tiny(**changes)
  params = model_params(config)
  together = logits_of(config, params, TOKENS, DOCUMENTS)
  alone = [logits_of(config, params, tokens) for tokens in (TOKENS[:, :FIRST], TOKENS[:, FIRST:])]
  assert distance(together, jnp.concatenate(alone, 1)) < 1e-6
  assert distance(together[:, FIRST:], logits_of(config, params, TOKENS)[:, FIRST:]) > 0.05  # else nothing was masked


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'causal': False},
    pytest.param({'position': 'learned'}, marks=pytest.mark.slow),
    pytest.param({'parallel': True, 'remat': True}, marks=pytest.mark.slow),
  ],
)
def test_nothing_crosses_a_boundary_to_the_bit(kernel, changes):
  config = tiny(**({'vocab_size': LENGTH} | changes))
  params = model_params(config)

  @quick_jit
  def gradient(table, documents):
    def logits(table):
      changed = params | {'embedding': params['embedding'] | {'token': table}}
      return jnp.sum(jnp.cos(apply(config, changed, jnp.arange(LENGTH)[None], documents_BT=documents)[0]), (0, 2))

    return jnp.sum(jnp.abs(jax.jacrev(logits)(table)), -1)  # (position, token): each token is at one position

  seen = np.asarray(gradient(params['embedding']['token'], DOCUMENTS)) > 0
  same = np.asarray(DOCUMENTS[0][:, None] == DOCUMENTS[0])
  np.testing.assert_array_equal(seen, same if not config.causal else same & np.tri(LENGTH, dtype=bool))


def test_positions_are_those_of_the_window(kernel):
  """A learned or sinusoidal vector is that of the place in the window: the second document is not as it is alone."""
  config = tiny(position='learned')
  params = model_params(config)
  together = logits_of(config, params, TOKENS, DOCUMENTS)
  first, second = (logits_of(config, params, tokens) for tokens in (TOKENS[:, :FIRST], TOKENS[:, FIRST:]))
  assert distance(together[:, :FIRST], first) < 1e-6
  assert distance(together[:, FIRST:], second) > 0.05


def by_hand(q, k, v, documents, causal):
  """A query at a time, over the keys it may see."""
  out = np.zeros(q.shape)
  for b, t, h in np.ndindex(q.shape[:3]):
    keys = [s for s in range(t + 1 if causal else q.shape[1]) if documents[b, s] == documents[b, t]]
    weights = reference.softmax(k[b, keys, h] @ q[b, t, h] / q.shape[-1] ** 0.5)
    out[b, t, h] = weights @ v[b, keys, h]
  return out


def operands(shape):
  rng = np.random.default_rng(0)
  documents = np.sort(rng.integers(4, size=shape[:2]), 1)
  documents[0] = rng.integers(3, size=shape[1])  # nothing says that a document is in one piece
  return [jnp.asarray(2 * rng.normal(size=shape), jnp.float32) for _ in range(3)], jnp.asarray(documents, jnp.int32)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('shape', [(2, 9, 2, 4), (2, 130, 2, 4)])
def test_every_form_by_hand(shape, causal):
  qkv, documents = operands(shape)
  expected = by_hand(*(np.asarray(x, np.float64) for x in qkv), np.asarray(documents), causal)
  for form, out in quick_jit(lambda *qkv: {name: f(*qkv, causal, documents) for name, f in FORMS.items()})(
    *qkv
  ).items():
    assert distance(out, expected) < 2e-6, form


@pytest.mark.parametrize('causal', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradients_of_every_form(causal):
  qkv, documents = operands((2, 130, 2, 4))
  seed = jnp.cos(jnp.arange(qkv[0].size).reshape(qkv[0].shape))

  def gradients(form):
    return jax.grad(lambda qkv: jnp.sum(seed * form(*qkv, causal, documents)))(qkv)

  found = quick_jit(lambda: {name: gradients(form) for name, form in FORMS.items()})()
  for name in ('blocked', 'xla'):
    assert all(distance(f, p) < 1e-5 for f, p in zip(found[name], found['plain'], strict=True)), name


def test_entropy_and_largest_logit_over_what_is_seen():
  (q, k, _), documents = operands((2, 70, 2, 4))  # two blocks of queries
  entropy_H, largest_H = quick_jit(lambda q, k: attention_statistics(q, k, True, documents))(q, k)
  q, k, documents = (np.asarray(x) for x in (q, k, documents))
  entropies, largest = np.zeros((2, 70, 2)), np.full(2, -np.inf)
  for b, t, h in np.ndindex(2, 70, 2):
    keys = [s for s in range(t + 1) if documents[b, s] == documents[b, t]]
    logits = k[b, keys, h].astype(float) @ q[b, t, h] / 2
    weights = reference.softmax(logits)
    entropies[b, t, h], largest[h] = -np.sum(weights * np.log(weights)), max(largest[h], logits.max())
  np.testing.assert_allclose(entropy_H, entropies.mean((0, 1)), rtol=1e-5)
  np.testing.assert_allclose(largest_H, largest, rtol=1e-5)


def test_however_the_stack_is_run():
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
    one = lambda tokens, documents: run(tokens[None], taps, documents_BT=documents[None], observe=True)[0][0]  # noqa: E731
    return jax.vmap(one)(tokens, documents)

  scanned = run(at_once)
  for other in (run(at_once, unroll=2), run(at_once, remat=True), run(mapped)):
    assert all(distance(a, b) < 1e-5 for a, b in zip(other, scanned, strict=True))
