"""What a position cannot see: the tokens after it, under every config and kernel, to the bit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import configs, model_params, quick_jit

from model import attention_kernels, blocked_attention
from model.transformer import apply


def plain(q, k, v, causal, documents=None):
  return attention_kernels.plain_attention(q, k, v, causal, documents=documents)


def accelerator(q, k, v, causal, documents=None):
  """What `attention` calls on a GPU or TPU where cuDNN has no kernel."""
  assert documents is None
  return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation='xla')


KERNELS = {'plain': plain, 'blocked': attention_kernels.attention, 'xla': accelerator}
LENGTH = 7  # blocks of three positions: the last one is padded


def seen_from(config, position: int):
  """How the logits up to a position change with later tokens, and their gradient in the embeddings of all tokens."""
  config = dataclasses.replace(config, vocab_size=2 * LENGTH, num_positions=LENGTH, causal=True)
  params = model_params(config)
  tokens = jnp.arange(LENGTH)[None]
  others = jnp.where(tokens > position, tokens + LENGTH, tokens)
  key = jax.random.key(0) if config.dropout else None

  @quick_jit
  def run(params, tokens):
    def logits_up_to(table):
      changed = params | {'embedding': params['embedding'] | {'token': table}}
      return apply(config, changed, tokens, dropout_key=key)[0][0, : position + 1]

    logits, pull = jax.vjp(logits_up_to, params['embedding']['token'])
    return logits, pull(jnp.cos(jnp.arange(logits.size).reshape(logits.shape)))[0]

  (logits, gradient), (logits_of_others, _) = run(params, tokens), run(params, others)
  return np.asarray(logits), np.asarray(logits_of_others), np.asarray(gradient)


def check(kernel: str, config, position: int) -> None:
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(blocked_attention, 'BLOCK', 3)
    patch.setattr(attention_kernels, 'attention', KERNELS[kernel])
    logits, logits_of_others, gradient = seen_from(config, position)
  np.testing.assert_array_equal(logits, logits_of_others)
  assert np.isfinite(logits).all()
  if not config.tie_embeddings:  # a tied head reads the table too
    np.testing.assert_array_equal(gradient[position + 1 : LENGTH], 0)


@pytest.mark.parametrize('kernel', KERNELS)
@settings(max_examples=3, deadline=None, derandomize=True)
@given(configs(), st.integers(0, LENGTH - 1))
def test_no_config_lets_a_position_see_a_later_token(kernel, config, position):
  check(kernel, config, position)


@pytest.mark.slow
@pytest.mark.parametrize('kernel', KERNELS)
@settings(max_examples=40, deadline=None)
@given(configs(), st.integers(0, LENGTH - 1))
def test_none_of_many_configs_lets_a_position_see_a_later_token(kernel, config, position):
  check(kernel, config, position)
