"""Attention a block of queries and a block of keys at a time, with a backward pass of its own.

After FlashAttention (Dao et al. 2022, algorithms 1 and 4; Dao 2023, section 3.1). model/attention_kernels.py has the
plain form that this computes. Here no array has T x T numbers: a loop over blocks of queries holds one over the blocks
of keys that they may see, so that memory and the time to compile do not grow with the number of blocks.

Arrays are cut into C blocks of T (or S) positions, with N = B H sequences of one head: q_CNTK, and q_NTK is one block.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

BLOCK = 64  # positions: the scores of a block stay in the cache, and a product is still large
LONG, LONG_BLOCK = 1024, 128  # from so many positions on, fewer turns of the loops are worth more than the cache


HIDDEN = -1e30  # the score of another document's key, whose weight is 0 once the block with the query's own key is read


class _Mask(NamedTuple):
  """Which keys a query sees: those up to itself, or all that are not padding; with documents, of its own alone."""

  causal: bool
  length: int

  def blocks(self, i, count: int):
    """How many blocks of keys block i of the queries reads."""
    return i + 1 if self.causal else count

  def logits(self, q_NTK, k_CNSK, i, j, documents_CBT):
    """Those of block i of the queries and block j of the keys; -inf, or HIDDEN, for what is not seen."""
    logits_NTS = self._logits(q_NTK, k_CNSK[j], i, j)
    if documents_CBT is None:
      return logits_NTS
    same_BTS = documents_CBT[i][:, :, None] == documents_CBT[j][:, None, :]
    same_NTS = jnp.repeat(same_BTS, len(logits_NTS) // len(same_BTS), 0)
    return jnp.maximum(jnp.where(same_NTS, logits_NTS, HIDDEN), HIDDEN)

  def _logits(self, q_NTK, k_NSK, i, j):
    logits_NTS = _scores(q_NTK, k_NSK)
    size = k_NSK.shape[1]
    query_T1, key_S = i * size + jnp.arange(size)[:, None], j * size + jnp.arange(size)
    if self.causal:  # padding comes after every query
      return jnp.where(key_S <= query_T1, logits_NTS, -jnp.inf)
    return jnp.where(key_S < self.length, logits_NTS, -jnp.inf) if self.length % size else logits_NTS


def blocked_attention(
  q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHK: jax.Array, causal: bool, documents_BT: jax.Array | None = None
) -> jax.Array:
  """softmax(q k^T / sqrt(K)) v in blocks; shapes and dtypes as in model/attention_kernels.py, S = T."""
  batch, length, heads, width = q_BTHK.shape
  count = -(-length // (BLOCK if length < LONG else LONG_BLOCK))
  size = -(-length // count)

  def cut(x_BTHK):
    padded = jnp.pad(x_BTHK, ((0, 0), (0, count * size - length), (0, 0), (0, 0)))
    blocks_CBHTK = padded.reshape(batch, count, size, heads, width).transpose(1, 0, 3, 2, 4)
    return blocks_CBHTK.reshape(count, batch * heads, size, width)

  documents_CBT = None
  if documents_BT is not None:
    padded_BT = jnp.pad(documents_BT, ((0, 0), (0, count * size - length)))
    documents_CBT = padded_BT.reshape(batch, count, size).swapaxes(0, 1)
  read_CNTK = _attend(cut(q_BTHK / width**0.5), cut(k_BSHK), cut(v_BSHK), documents_CBT, _Mask(causal, length))
  blocks_BCTHK = read_CNTK.reshape(count, batch, heads, size, width).transpose(1, 0, 3, 2, 4)
  return blocks_BCTHK.reshape(batch, count * size, heads, width)[:, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(q_CNTK, k_CNSK, v_CNSK, documents_CBT, mask: _Mask):
  return _forward(q_CNTK, k_CNSK, v_CNSK, documents_CBT, mask)[0]


def _forward(q_CNTK, k_CNSK, v_CNSK, documents_CBT, mask: _Mask):
  """What is read; of the weights it keeps the logarithm of each query's sum alone, which makes them again."""

  def read_block(block):
    i, q_NTK = block

    def add_keys(j, so_far):
      largest_NT1, total_NT1, read_NTK = so_far
      logits_NTS = mask.logits(q_NTK, k_CNSK, i, j, documents_CBT)
      new_largest_NT1 = jnp.maximum(largest_NT1, jnp.max(logits_NTS, -1, keepdims=True))
      weights_NTS = jnp.exp(logits_NTS - new_largest_NT1)
      shrunk_NT1 = jnp.exp(largest_NT1 - new_largest_NT1)
      total_NT1 = total_NT1 * shrunk_NT1 + jnp.sum(weights_NTS, -1, keepdims=True)
      return new_largest_NT1, total_NT1, read_NTK * shrunk_NT1 + _product(weights_NTS.astype(v_CNSK.dtype), v_CNSK[j])

    zero_NT1, zero_NTK = jnp.zeros((*q_NTK.shape[:2], 1)), jnp.zeros(q_NTK.shape)
    nothing = (zero_NT1 - jnp.inf, zero_NT1, zero_NTK)
    largest_NT1, total_NT1, read_NTK = jax.lax.fori_loop(0, mask.blocks(i, len(k_CNSK)), add_keys, nothing)
    return (read_NTK / total_NT1).astype(v_CNSK.dtype), largest_NT1 + jnp.log(total_NT1)

  read_CNTK, log_total_CNT1 = jax.lax.map(read_block, (jnp.arange(len(q_CNTK)), q_CNTK))
  return read_CNTK, (q_CNTK, k_CNSK, v_CNSK, documents_CBT, read_CNTK, log_total_CNT1)


def _backward(mask: _Mask, kept, gradient_CNTK):
  """The gradients of q, k and v, with the weights of each pair of blocks computed again."""
  q_CNTK, k_CNSK, v_CNSK, documents_CBT, read_CNTK, log_total_CNT1 = kept

  def add_block(so_far, block):
    i, q_NTK, read_NTK, log_total_NT1, g_NTK = block
    along_NT1 = jnp.sum((g_NTK * read_NTK).astype(jnp.float32), -1, keepdims=True)
    # Products whose left operand must be transposed are slow on a CPU: the small ones are, once, and not the weights.
    q_NKT, g_NKT = _transposed(q_NTK), _transposed(g_NTK)

    def add_keys(j, so_far):
      dq_NTK, dk_CNKS, dv_CNKS = so_far
      weights_NTS = jnp.exp(mask.logits(q_NTK, k_CNSK, i, j, documents_CBT) - log_total_NT1)
      dlogits_NTS = weights_NTS * (_scores(g_NTK, v_CNSK[j]) - along_NT1)
      weights_NTS, dlogits_NTS = weights_NTS.astype(g_NTK.dtype), dlogits_NTS.astype(g_NTK.dtype)
      dk_CNKS = dk_CNKS.at[j].add(_product(q_NKT, dlogits_NTS))
      dv_CNKS = dv_CNKS.at[j].add(_product(g_NKT, weights_NTS))
      return dq_NTK + _product(dlogits_NTS, k_CNSK[j]), dk_CNKS, dv_CNKS

    start = (jnp.zeros(q_NTK.shape), *so_far)
    dq_NTK, *so_far = jax.lax.fori_loop(0, mask.blocks(i, len(k_CNSK)), add_keys, start)
    return tuple(so_far), dq_NTK.astype(q_NTK.dtype)

  count, sequences, size, width = k_CNSK.shape
  zeros_CNKS = jnp.zeros((count, sequences, width, size))
  blocks = (jnp.arange(count), q_CNTK, read_CNTK, log_total_CNT1, gradient_CNTK)
  (dk_CNKS, dv_CNKS), dq_CNTK = jax.lax.scan(add_block, (zeros_CNKS, zeros_CNKS), blocks)
  return dq_CNTK, *(x.swapaxes(2, 3).astype(k_CNSK.dtype) for x in (dk_CNKS, dv_CNKS)), None


_attend.defvjp(_forward, _backward)


def _scores(a_NTK, b_NSK):
  """The inner product of each row of a with each of b, summed in float32."""
  return jnp.einsum('NTK,NSK->NTS', a_NTK, b_NSK, preferred_element_type=jnp.float32)


def _product(a, b):
  """The product of matrices, summed in float32."""
  return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _transposed(x):
  """The last two axes exchanged, in memory too: the compiler would undo a transposition that it sees in a product."""
  return jax.lax.optimization_barrier(x.swapaxes(-1, -2))
