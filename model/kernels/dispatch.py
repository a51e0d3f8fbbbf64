"""Scaled dot-product attention, by the implementation that suits the device."""

from typing import Literal

import jax
import jax.numpy as jnp

from model.kernels.blocked_attention import blocked_attention
from model.kernels.plain_attention import plain_attention, repeat_kv_heads, same_document


def dot_product_attention(
  q_BTHK: jax.Array,
  k_BSHK: jax.Array,
  v_BSHK: jax.Array,
  causal: bool,
  documents_BT: jax.Array | None = None,
  dropout: float = 0.0,
  dropout_key: jax.Array | None = None,
  sink_H: jax.Array | None = None,
) -> jax.Array:
  """softmax(q k^T / sqrt(K)) v, as `plain_attention` defines it, by the fastest implementation for the device.

  That is blocked attention on a CPU. On other devices it is cuDNN's fused kernel where supported, and otherwise, such
  as with documents, XLA's implementation. Dropout needs the plain definition, since fused kernels never materialise the
  attention weights; so does a sink except on a CPU, since those of other devices do not accept one.

  Args:
    q_BTHK: queries, float32 or bfloat16.
    k_BSHK: keys, S = T, the same dtype; its heads may be fewer, each shared by a group of query heads.
    v_BSHK: values, shaped as the keys.
    causal: whether a query attends to no later position than its own.
    documents_BT: the document index of each position; a query attends only within its document. None: one document.
    dropout: the dropout rate of the attention weights.
    dropout_key: None for no dropout.
    sink_H: a logit for each query head that competes with those of the keys and has the value 0, float32. None: no
      sink.

  Returns:
    out_BTHK in the dtype of the values; the softmax is computed in float32.
  """
  on_cpu = jax.default_backend() == 'cpu'
  if dropout_key is not None or (sink_H is not None and not on_cpu):
    return plain_attention(q_BTHK, k_BSHK, v_BSHK, causal, documents_BT, dropout, dropout_key, sink_H)
  if on_cpu:
    k_BSHK, v_BSHK = (repeat_kv_heads(x_BSHK, q_BTHK.shape[2]) for x_BSHK in (k_BSHK, v_BSHK))
    return blocked_attention(q_BTHK, k_BSHK, v_BSHK, causal, documents_BT, sink_H)
  if documents_BT is not None:  # cuDNN's kernel would need a dense T x T mask too
    mask_B1TS = same_document(documents_BT, documents_BT)[:, None]
    return jax.nn.dot_product_attention(q_BTHK, k_BSHK, v_BSHK, mask=mask_B1TS, is_causal=causal, implementation='xla')
  implementation: Literal['cudnn', 'xla'] = 'cudnn' if _cudnn_supports(q_BTHK) else 'xla'
  return jax.nn.dot_product_attention(q_BTHK, k_BSHK, v_BSHK, is_causal=causal, implementation=implementation)


def _cudnn_supports(q_BTHK: jax.Array) -> bool:
  """Whether cuDNN has a fused kernel: bfloat16, head_dim a multiple of 8 up to 128, an NVIDIA GPU from Ampere on."""
  capability = str(getattr(jax.devices()[0], 'compute_capability', ''))  # '8.0' on an A100, 'gfx90a' on an AMD GPU
  major, _, minor = capability.partition('.')
  ampere = major.isdecimal() and minor.isdecimal() and int(major) >= 8
  return ampere and q_BTHK.dtype == jnp.bfloat16 and q_BTHK.shape[-1] % 8 == 0 and q_BTHK.shape[-1] <= 128
