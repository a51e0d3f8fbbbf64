"""softmax(q k^T / sqrt(K)) v by definition, and the one place that chooses what computes it.

All take q (B, T, H, K) and k, v (B, S, H, K) with S = T, of which k and v may have fewer heads, each shared by a group
of query heads, and give (B, T, H, K) in q's dtype; softmax in float32. With documents (B, T), a query attends to the
keys of its own document alone.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from model.blocked_attention import BLOCK, blocked_attention

Documents = jax.Array | None  # the document of each position (B, T), integers; None: all are one


def attention_logits(
  q_BTHK: jax.Array, k_BSHK: jax.Array, causal: bool, first_query: int = 0, documents: Documents = None
) -> jax.Array:
  """Scores q k^T / sqrt(K) in float32, (B, H, T, S); -inf where query first_query + t may not see key s.

  Documents are those of all positions, of which the queries and the keys may be a part.
  """
  k_BSHK = _for_each_query_head(k_BSHK, q_BTHK)
  logits_BHTS = jnp.einsum('BTHK,BSHK->BHTS', q_BTHK, k_BSHK, preferred_element_type=jnp.float32)
  logits_BHTS = logits_BHTS / q_BTHK.shape[-1] ** 0.5
  if causal:
    visible_TS = jnp.tri(q_BTHK.shape[1], k_BSHK.shape[1], first_query, dtype=bool)
    logits_BHTS = jnp.where(visible_TS, logits_BHTS, -jnp.inf)
  if documents is not None:
    queries_BT = documents[:, first_query : first_query + q_BTHK.shape[1]]
    same_BTS = same_document(queries_BT, documents[:, : k_BSHK.shape[1]])
    logits_BHTS = jnp.where(same_BTS[:, None], logits_BHTS, -jnp.inf)
  return logits_BHTS


def same_document(queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
  """Whether a query and a key belong to one document, (B, T, S)."""
  return queries_BT[:, :, None] == keys_BS[:, None, :]


def attention_weights(q_BTHK: jax.Array, k_BSHK: jax.Array, causal: bool, documents: Documents = None) -> jax.Array:
  """The weights by definition, float32 (B, H, T, S); each row sums to 1."""
  return jax.nn.softmax(attention_logits(q_BTHK, k_BSHK, causal, documents=documents), -1)


def plain_attention(
  q_BTHK, k_BSHK, v_BSHK, causal: bool, dropout: float = 0.0, key=None, documents: Documents = None
) -> jax.Array:
  """Attention by definition (Vaswani et al. 2017, equation 1), with dropout on the weights if a key is given."""
  weights_BHTS = attention_weights(q_BTHK, k_BSHK, causal, documents)
  if key is not None:
    kept = jax.random.bernoulli(key, 1 - dropout, weights_BHTS.shape)
    weights_BHTS = jnp.where(kept, weights_BHTS / (1 - dropout), 0)
  v_BSHK = _for_each_query_head(v_BSHK, q_BTHK)
  return jnp.einsum('BHTS,BSHK->BTHK', weights_BHTS.astype(v_BSHK.dtype), v_BSHK)


def attention_statistics(q_BTHK, k_BSHK, causal: bool, documents: Documents = None) -> tuple[jax.Array, jax.Array]:
  """What the kernels keep to themselves, from the definition and outside the gradient.

  A block of queries at a time, so that memory grows with T, not with T squared.

  Returns:
    The entropy of the weights in nats, averaged over queries and sequences, and the largest logit: each (H,).
  """
  q_BTHK, k_BSHK = jax.lax.stop_gradient((q_BTHK, k_BSHK))
  batch, length, heads, _ = q_BTHK.shape
  entropy_H, largest_H = jnp.zeros(heads), jnp.full(heads, -jnp.inf)
  for start in range(0, length, BLOCK):
    stop = min(start + BLOCK, length)
    seen = stop if causal else length
    logits_BHTS = attention_logits(q_BTHK[:, start:stop], k_BSHK[:, :seen], causal, start, documents)
    weights_BHTS = jax.nn.softmax(logits_BHTS, -1)
    entropy_H += jnp.sum(jax.scipy.special.entr(weights_BHTS), (0, 2, 3))
    largest_H = jnp.maximum(largest_H, jnp.max(logits_BHTS, (0, 2, 3)))
  return entropy_H / (batch * length), largest_H


def attention(q_BTHK, k_BSHK, v_BSHK, causal: bool, documents: Documents = None) -> jax.Array:
  """Attention by what suits the device: blocks on a CPU, cuDNN's kernel where it can, XLA's own form elsewhere.

  XLA's form also has all masks of documents: as a dense mask they would take cuDNN's kernel T x T numbers as well.
  """
  if jax.default_backend() == 'cpu':
    k_BSHK, v_BSHK = (_for_each_query_head(x_BSHK, q_BTHK) for x_BSHK in (k_BSHK, v_BSHK))
    return blocked_attention(q_BTHK, k_BSHK, v_BSHK, causal, documents)
  if documents is not None:
    mask_B1TS = same_document(documents, documents)[:, None]
    return jax.nn.dot_product_attention(q_BTHK, k_BSHK, v_BSHK, mask=mask_B1TS, is_causal=causal, implementation='xla')
  implementation: Literal['cudnn', 'xla'] = 'cudnn' if _cudnn_takes(q_BTHK) else 'xla'
  return jax.nn.dot_product_attention(q_BTHK, k_BSHK, v_BSHK, is_causal=causal, implementation=implementation)


def _cudnn_takes(q_BTHK) -> bool:
  """Whether cuDNN has a fused kernel: bfloat16, heads of a multiple of 8 up to 128, an NVIDIA GPU since Ampere."""
  capability = str(getattr(jax.devices()[0], 'compute_capability', ''))  # 8.0 on an A100; gfx90a on one of AMD's
  major, _, minor = capability.partition('.')
  recent = major.isdecimal() and minor.isdecimal() and int(major) >= 8
  return recent and q_BTHK.dtype == jnp.bfloat16 and q_BTHK.shape[-1] % 8 == 0 and q_BTHK.shape[-1] <= 128


def _for_each_query_head(x_BSHK, q_BTHK):
  """Keys or values repeated within each group of query heads (Ainslie et al. 2023)."""
  return jnp.repeat(x_BSHK, q_BTHK.shape[2] // x_BSHK.shape[2], 2)
