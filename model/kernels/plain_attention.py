"""Scaled dot-product attention by definition: softmax(q k^T / sqrt(K)) v, with all T x S weights in memory."""

import jax
import jax.numpy as jnp


def attention_logits(
  q_BTHK: jax.Array,
  k_BSHK: jax.Array,
  causal: bool,
  documents_BT: jax.Array | None = None,
  first_query: int = 0,
) -> jax.Array:
  """The attention logits q k^T / sqrt(K), masked.

  Args:
    q_BTHK: queries, float32 or bfloat16; may cover only a part of the sequence.
    k_BSHK: keys, the same dtype; key s is at position s. Its heads may be fewer, each shared by a group of query heads.
    causal: whether a query attends to no later position than its own.
    documents_BT: the document index of each position; a query attends only within its document. None: one document.
    first_query: the position of query 0.

  Returns:
    logits_BHTS, float32; -inf where query t may not attend to key s.
  """
  k_BSHK = repeat_kv_heads(k_BSHK, q_BTHK.shape[2])
  logits_BHTS = jnp.einsum('BTHK,BSHK->BHTS', q_BTHK, k_BSHK, preferred_element_type=jnp.float32)
  logits_BHTS = logits_BHTS / q_BTHK.shape[-1] ** 0.5
  if causal:
    mask_TS = jnp.tri(q_BTHK.shape[1], k_BSHK.shape[1], first_query, dtype=bool)
    logits_BHTS = jnp.where(mask_TS, logits_BHTS, -jnp.inf)
  if documents_BT is not None:
    query_documents_BT = documents_BT[:, first_query : first_query + q_BTHK.shape[1]]
    mask_BTS = same_document(query_documents_BT, documents_BT[:, : k_BSHK.shape[1]])
    logits_BHTS = jnp.where(mask_BTS[:, None], logits_BHTS, -jnp.inf)
  return logits_BHTS


def with_sink(logits_BHTS: jax.Array, sink_H: jax.Array) -> jax.Array:
  """The logits with that of each head's sink as the last column, (B, H, T, S + 1)."""
  sink_BHT1 = jnp.broadcast_to(sink_H[:, None, None], (*logits_BHTS.shape[:3], 1))
  return jnp.concatenate([logits_BHTS, sink_BHT1], -1)


def attention_weights(
  q_BTHK: jax.Array,
  k_BSHK: jax.Array,
  causal: bool,
  documents_BT: jax.Array | None = None,
  sink_H: jax.Array | None = None,
) -> jax.Array:
  """The attention weights: the softmax of `attention_logits`, and of the sink if there is one.

  Returns:
    The weights of the keys, weights_BHTS, float32. Each row sums to 1, or to 1 minus the weight of the sink.
  """
  logits_BHTS = attention_logits(q_BTHK, k_BSHK, causal, documents_BT)
  if sink_H is None:
    return jax.nn.softmax(logits_BHTS, -1)
  return jax.nn.softmax(with_sink(logits_BHTS, sink_H), -1)[..., :-1]


def plain_attention(
  q_BTHK: jax.Array,
  k_BSHK: jax.Array,
  v_BSHK: jax.Array,
  causal: bool,
  documents_BT: jax.Array | None = None,
  dropout: float = 0.0,
  dropout_key: jax.Array | None = None,
  sink_H: jax.Array | None = None,
) -> jax.Array:
  """Attention(Q, K, V) of Vaswani et al. 2017, equation 1; arguments and result as in `dot_product_attention`."""
  weights_BHTS = attention_weights(q_BTHK, k_BSHK, causal, documents_BT, sink_H)
  if dropout_key is not None:
    keep_BHTS = jax.random.bernoulli(dropout_key, 1 - dropout, weights_BHTS.shape)
    weights_BHTS = jnp.where(keep_BHTS, weights_BHTS / (1 - dropout), 0)
  v_BSHK = repeat_kv_heads(v_BSHK, q_BTHK.shape[2])
  return jnp.einsum('BHTS,BSHK->BTHK', weights_BHTS.astype(v_BSHK.dtype), v_BSHK)


def same_document(query_documents_BT: jax.Array, key_documents_BS: jax.Array) -> jax.Array:
  """Whether query t and key s belong to the same document: a boolean mask_BTS."""
  return query_documents_BT[:, :, None] == key_documents_BS[:, None, :]


def repeat_kv_heads(x_BSHK: jax.Array, num_heads: int) -> jax.Array:
  """Keys or values repeated for each query head of their group, (B, S, num_heads, K) (Ainslie et al. 2023)."""
  return jnp.repeat(x_BSHK, num_heads // x_BSHK.shape[2], 2)
