"""Causality: no position depends on a later token, bit for bit, under every config and attention kernel."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import configs, model_params, quick_jit

from model import attention
from model.kernels import blocked_attention
from model.kernels.plain_attention import plain_attention
from model.transformer import apply


def accelerator(q, k, v, causal, documents_BT, dropout, dropout_key, sink_H):
  """As `dot_product_attention` on a GPU or TPU without cuDNN's kernel."""
  assert documents_BT is None
  if dropout_key is not None or sink_H is not None:
    return plain_attention(q, k, v, causal, documents_BT, dropout, dropout_key, sink_H)
  return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation='xla')


KERNELS = {'plain': plain_attention, 'blocked': attention.dot_product_attention, 'xla': accelerator}
LENGTH = 7  # with blocks of 3 positions the last one is padded


def logits_up_to(config, position: int):
  """The logits up to a position, with one and with other tokens after it, and their gradient in the token table."""
  config = dataclasses.replace(config, vocab_size=2 * LENGTH, num_positions=LENGTH, causal=True)
  params = model_params(config)
  tokens = jnp.arange(LENGTH)[None]
  others = jnp.where(tokens > position, tokens + LENGTH, tokens)
  key = jax.random.key(0) if config.dropout else None

  @quick_jit
  def run(params, tokens):
    def logits_of(table):
      changed = params | {'embedding': params['embedding'] | {'token': table}}
      return apply(config, changed, tokens, dropout_key=key)[0][0, : position + 1]

    logits, pull = jax.vjp(logits_of, params['embedding']['token'])
    return logits, pull(jnp.cos(jnp.arange(logits.size).reshape(logits.shape)))[0]

  (logits, gradient), (logits_of_others, _) = run(params, tokens), run(params, others)
  return np.asarray(logits), np.asarray(logits_of_others), np.asarray(gradient)


def check(kernel: str, config, position: int) -> None:
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(blocked_attention, 'BLOCK_SIZE', 3)
    patch.setattr(attention, 'dot_product_attention', KERNELS[kernel])
    logits, logits_of_others, gradient = logits_up_to(config, position)
  np.testing.assert_array_equal(logits, logits_of_others)
  assert np.isfinite(logits).all()
  if not config.tie_embeddings:  # a tied head reads the table too
    np.testing.assert_array_equal(gradient[position + 1 : LENGTH], 0)


@pytest.mark.parametrize('kernel', [next(iter(KERNELS))])  # the others below
@settings(max_examples=3, deadline=None, derandomize=True)
@given(configs(), st.integers(0, LENGTH - 1))
def test_no_position_depends_on_a_later_token(kernel, config, position):
  check(kernel, config, position)


@pytest.mark.slow
@pytest.mark.parametrize('kernel', KERNELS)
@settings(max_examples=40, deadline=None)
@given(configs(), st.integers(0, LENGTH - 1))
def test_no_position_depends_on_a_later_token_in_many_configs(kernel, config, position):
  check(kernel, config, position)
