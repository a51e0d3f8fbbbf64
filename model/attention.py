"""The attention branch: multi-head or grouped-query self-attention."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from model.config import ModelConfig
from model.forward_statistics import Stats, attention_statistics
from model.kernels.dispatch import dot_product_attention
from model.kernels.projection import project
from model.kernels.recompute import recomputed
from model.linear import Linear
from model.norm import make_norm
from model.position import rotate


class Attention(nnx.Module):
  """softmax(q k^T / sqrt(K)) v W_output, multi-head (Vaswani et al. 2017, section 3.2.2).

  Grouped-query if there are fewer key and value heads than query heads (Ainslie et al. 2023). With `attention_gate`
  the heads are multiplied by sigmoid(x W_gate) (Qiu et al. 2025, their best position); with `attention_sink` the
  softmax has one more logit, learned for each head, whose weight is dropped.
  """

  def __init__(self, config: ModelConfig):
    query_width, kv_width = config.num_heads * config.key_width, config.kv_heads * config.key_width
    self.query = Linear(config.d_model, query_width, config.use_bias, config.dtype)
    self.key = Linear(config.d_model, kv_width, config.use_bias, config.dtype)
    self.value = Linear(config.d_model, kv_width, config.use_bias, config.dtype)
    self.output = Linear(query_width, config.d_model, config.use_bias, config.dtype)
    for name in config.head_norms:
      setattr(self, f'{name}_norm', make_norm(config.norm, config.key_width, config.use_bias))
    self.gate = Linear(config.d_model, query_width, config.use_bias, config.dtype) if config.attention_gate else None
    self.sink = nnx.Param(jnp.zeros(config.num_heads)) if config.attention_sink else None
    self.config = config

  def __call__(
    self,
    x_BTD: jax.Array,
    dropout_key: jax.Array | None = None,
    documents_BT: jax.Array | None = None,
    values: Callable[[jax.Array], jax.Array] | None = None,
    mix: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
  ) -> jax.Array:
    """Runs the branch.

    Args:
      x_BTD: the input of the branch, float32.
      dropout_key: for the attention weights; None for no dropout.
      documents_BT: the document index of each position, int32: positions attend only within their document; None: a
        single document.
      values: replaces the values v_BSHK, in the compute dtype, by those attended to; None: the values as they are.
      mix: replaces what the heads computed, out_BTHK, by a function of it and the values v_BSHK; None: as computed.

    Returns:
      (B, T, D) in the compute dtype.
    """
    q_BTHK, k_BSHK, v_BSHK = self.queries_keys_values(x_BTD)
    if values is not None:
      v_BSHK = values(v_BSHK)
    out_BTHK = dot_product_attention(
      q_BTHK, k_BSHK, v_BSHK, self.config.causal, documents_BT, self.config.dropout, dropout_key, self._sink()
    )
    if mix is not None:
      out_BTHK = mix(out_BTHK, v_BSHK)
    heads_BTM = out_BTHK.reshape(*x_BTD.shape[:2], -1)  # M = H K, the heads side by side
    if self.gate is None:
      return self.output(heads_BTM)
    return recomputed(
      lambda output, heads, gate: output(heads * jax.nn.sigmoid(gate)), self.output, heads_BTM, self.gate(x_BTD)
    )

  def _sink(self) -> jax.Array | None:
    return None if self.sink is None else self.sink[...]

  def queries_keys_values(self, x_BTD: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Projects the input to queries, keys and values; normalised and rotated as configured.

    Args:
      x_BTD: the input of the branch, float32.

    Returns:
      q_BTHK, and k_BSHK and v_BSHK with num_kv_heads heads, S = T, in the compute dtype.
    """
    config = self.config
    heads = (*x_BTD.shape[:2], -1, config.key_width)
    # The gradient of a group of kernels is all-reduced as one array. With the value, the group would be wider than any
    # single kernel.
    projected = project(x_BTD, [self.query, self.key], [self.value])
    parts = zip(('query', 'key', 'value'), [y.reshape(heads) for y in projected], strict=True)
    q_BTHK, k_BSHK, v_BSHK = (getattr(self, f'{name}_norm')(y) if name in config.head_norms else y for name, y in parts)
    if config.position == 'rotary':
      q_BTHK, k_BSHK = rotate(q_BTHK), rotate(k_BSHK)
    return q_BTHK.astype(config.dtype), k_BSHK.astype(config.dtype), v_BSHK.astype(config.dtype)

  def statistics(self, x_BTD: jax.Array, documents_BT: jax.Array | None = None) -> Stats:
    """Forward statistics of each head for this input; see model/forward_statistics.py."""
    q_BTHK, k_BSHK, _ = self.queries_keys_values(x_BTD)
    return attention_statistics(q_BTHK, k_BSHK, self.config.causal, documents_BT, self._sink())
