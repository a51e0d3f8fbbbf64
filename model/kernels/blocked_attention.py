"""Attention computed block by block over queries and keys, with a custom backward pass.

After FlashAttention (Dao et al. 2022, algorithms 1 and 4; Dao 2023, section 3.1); the plain definition is
`plain_attention`. No array has T x T elements: a loop over blocks of queries contains a loop over the blocks of keys
that they may attend to, so neither memory per position nor compile time grows with the number of blocks.

Sequences are cut into C blocks of T (queries) or S (keys) positions, and the heads of all sequences share one axis,
N = B H: q_CNTK holds all blocks, and q_NTK is one of them.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

BLOCK_SIZE = 64  # positions: small enough for a block's logits to stay in cache, large enough for efficient products
LONG_SEQUENCE, LONG_BLOCK_SIZE = 1024, 128  # from this length on, fewer loop iterations outweigh the cache


MASKED = -1e30  # the logit of a key in another document: its weight is 0 once the query's own key has been processed


class _Mask(NamedTuple):
  """Which keys a query attends to: none after it if causal, no padding, and only those of its own document."""

  causal: bool
  length: int

  def num_key_blocks(self, i, count: int):
    """The number of key blocks that the queries of block i attend to."""
    return i + 1 if self.causal else count

  def logits(self, q_NTK, k_CNSK, i, j, documents_CBT):
    """The logits of query block i and key block j; -inf where masked, MASKED across documents."""
    logits_NTS = self._logits(q_NTK, k_CNSK[j], i, j)
    if documents_CBT is None:
      return logits_NTS
    same_BTS = documents_CBT[i][:, :, None] == documents_CBT[j][:, None, :]
    same_NTS = jnp.repeat(same_BTS, len(logits_NTS) // len(same_BTS), 0)
    return jnp.maximum(jnp.where(same_NTS, logits_NTS, MASKED), MASKED)

  def _logits(self, q_NTK, k_NSK, i, j):
    logits_NTS = _inner_products(q_NTK, k_NSK)
    size = k_NSK.shape[1]
    query_T1, key_S = i * size + jnp.arange(size)[:, None], j * size + jnp.arange(size)
    if self.causal:  # padding comes after every query
      return jnp.where(key_S <= query_T1, logits_NTS, -jnp.inf)
    return jnp.where(key_S < self.length, logits_NTS, -jnp.inf) if self.length % size else logits_NTS


def blocked_attention(
  q_BTHK: jax.Array,
  k_BSHK: jax.Array,
  v_BSHK: jax.Array,
  causal: bool,
  documents_BT: jax.Array | None = None,
  sink_H: jax.Array | None = None,
) -> jax.Array:
  """softmax(q k^T / sqrt(K)) v, as `plain_attention` defines it without dropout.

  Args:
    q_BTHK: queries, float32 or bfloat16.
    k_BSHK: keys, S = T, as many heads as the queries.
    v_BSHK: values, of the same shape as the keys.
    causal: whether a query attends to no later position than its own.
    documents_BT: the document index of each position; a query attends only within its document. None: one document.
    sink_H: a logit for each head that competes with those of the keys and has the value 0, float32. None: no sink.

  Returns:
    out_BTHK in the dtype of the values.
  """
  batch, length, heads, width = q_BTHK.shape
  count = -(-length // (BLOCK_SIZE if length < LONG_SEQUENCE else LONG_BLOCK_SIZE))
  size = -(-length // count)

  def cut(x_BTHK):
    padded = jnp.pad(x_BTHK, ((0, 0), (0, count * size - length), (0, 0), (0, 0)))
    blocks_CBHTK = padded.reshape(batch, count, size, heads, width).transpose(1, 0, 3, 2, 4)
    return blocks_CBHTK.reshape(count, batch * heads, size, width)

  documents_CBT = None
  if documents_BT is not None:
    padded_BT = jnp.pad(documents_BT, ((0, 0), (0, count * size - length)))
    documents_CBT = padded_BT.reshape(batch, count, size).swapaxes(0, 1)
  sink_N = None if sink_H is None else jnp.tile(sink_H, batch)
  out_CNTK = _attend(cut(q_BTHK / width**0.5), cut(k_BSHK), cut(v_BSHK), documents_CBT, sink_N, _Mask(causal, length))
  blocks_BCTHK = out_CNTK.reshape(count, batch, heads, size, width).transpose(1, 0, 3, 2, 4)
  return blocks_BCTHK.reshape(batch, count * size, heads, width)[:, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q_CNTK, k_CNSK, v_CNSK, documents_CBT, sink_N, mask: _Mask):
  return _forward(q_CNTK, k_CNSK, v_CNSK, documents_CBT, sink_N, mask)[0]


def _forward(q_CNTK, k_CNSK, v_CNSK, documents_CBT, sink_N, mask: _Mask):
  """The output and the residuals for the backward pass: of the attention weights, only each query's log-sum-exp."""

  def attend_block(block):
    i, q_NTK = block

    def add_keys(j, carry):
      max_NT1, sum_NT1, out_NTK = carry
      logits_NTS = mask.logits(q_NTK, k_CNSK, i, j, documents_CBT)
      new_max_NT1 = jnp.maximum(max_NT1, jnp.max(logits_NTS, -1, keepdims=True))
      weights_NTS = jnp.exp(logits_NTS - new_max_NT1)
      rescale_NT1 = jnp.exp(max_NT1 - new_max_NT1)
      sum_NT1 = sum_NT1 * rescale_NT1 + jnp.sum(weights_NTS, -1, keepdims=True)
      return new_max_NT1, sum_NT1, out_NTK * rescale_NT1 + _product(weights_NTS.astype(v_CNSK.dtype), v_CNSK[j])

    zero_NT1, zero_NTK = jnp.zeros((*q_NTK.shape[:2], 1)), jnp.zeros(q_NTK.shape)
    if sink_N is None:
      initial = (zero_NT1 - jnp.inf, zero_NT1, zero_NTK)
    else:  # the sink is a key that has been processed, with weight 1 and value 0
      initial = (zero_NT1 + sink_N[:, None, None], zero_NT1 + 1, zero_NTK)
    max_NT1, sum_NT1, out_NTK = jax.lax.fori_loop(0, mask.num_key_blocks(i, len(k_CNSK)), add_keys, initial)
    return (out_NTK / sum_NT1).astype(v_CNSK.dtype), max_NT1 + jnp.log(sum_NT1)

  out_CNTK, log_sum_CNT1 = jax.lax.map(attend_block, (jnp.arange(len(q_CNTK)), q_CNTK))
  return out_CNTK, (q_CNTK, k_CNSK, v_CNSK, documents_CBT, sink_N, out_CNTK, log_sum_CNT1)


def _backward(mask: _Mask, residuals, g_CNTK):
  """The gradients with respect to q, k, v and the sink; the weights of each pair of blocks are recomputed."""
  q_CNTK, k_CNSK, v_CNSK, documents_CBT, sink_N, out_CNTK, log_sum_CNT1 = residuals

  def add_queries(carry, block):
    i, q_NTK, out_NTK, log_sum_NT1, g_NTK = block
    delta_NT1 = jnp.sum((g_NTK * out_NTK).astype(jnp.float32), -1, keepdims=True)
    # A product with a transposed left operand is slow on a CPU: transpose q and g once, not the weights of each pair.
    q_NKT, g_NKT = _transposed(q_NTK), _transposed(g_NTK)

    def add_keys(j, carry):
      dq_NTK, dk_CNKS, dv_CNKS = carry
      weights_NTS = jnp.exp(mask.logits(q_NTK, k_CNSK, i, j, documents_CBT) - log_sum_NT1)
      dlogits_NTS = weights_NTS * (_inner_products(g_NTK, v_CNSK[j]) - delta_NT1)
      weights_NTS, dlogits_NTS = weights_NTS.astype(g_NTK.dtype), dlogits_NTS.astype(g_NTK.dtype)
      dk_CNKS = dk_CNKS.at[j].add(_product(q_NKT, dlogits_NTS))
      dv_CNKS = dv_CNKS.at[j].add(_product(g_NKT, weights_NTS))
      return dq_NTK + _product(dlogits_NTS, k_CNSK[j]), dk_CNKS, dv_CNKS

    initial = (jnp.zeros(q_NTK.shape), *carry)
    dq_NTK, *carry = jax.lax.fori_loop(0, mask.num_key_blocks(i, len(k_CNSK)), add_keys, initial)
    return tuple(carry), dq_NTK.astype(q_NTK.dtype)

  count, sequences, size, width = k_CNSK.shape
  zeros_CNKS = jnp.zeros((count, sequences, width, size))
  blocks = (jnp.arange(count), q_CNTK, out_CNTK, log_sum_CNT1, g_CNTK)
  (dk_CNKS, dv_CNKS), dq_CNTK = jax.lax.scan(add_queries, (zeros_CNKS, zeros_CNKS), blocks)
  dk_CNSK, dv_CNSK = (x.swapaxes(2, 3).astype(k_CNSK.dtype) for x in (dk_CNKS, dv_CNKS))
  dsink_N = None
  if sink_N is not None:  # as for a key with the value 0
    delta_CNT1 = jnp.sum((g_CNTK * out_CNTK).astype(jnp.float32), -1, keepdims=True)
    dsink_N = -jnp.sum(jnp.exp(sink_N[:, None, None] - log_sum_CNT1) * delta_CNT1, (0, 2, 3))
  return dq_CNTK, dk_CNSK, dv_CNSK, None, dsink_N


_attend.defvjp(_forward, _backward)


def _inner_products(a_NTK, b_NSK):
  """The inner product of each row of a with each row of b, accumulated in float32."""
  return jnp.einsum('NTK,NSK->NTS', a_NTK, b_NSK, preferred_element_type=jnp.float32)


def _product(a, b):
  """The matrix product, accumulated in float32."""
  return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _transposed(x):
  """The last two axes exchanged, in memory too: without the barrier XLA folds the transposition into the product."""
  return jax.lax.optimization_barrier(x.swapaxes(-1, -2))
