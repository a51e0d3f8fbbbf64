"""The attention branch: each position reads others, through several heads."""

import jax
from flax import nnx

from model import attention_kernels
from model.config import ModelConfig
from model.linear import Linear, project
from model.norm import make_norm
from model.position import rotate


class Attention(nnx.Module):
  """Multi-head attention (Vaswani et al. 2017, section 3.2.2), grouped-query if key heads are fewer."""

  def __init__(self, config: ModelConfig):
    query_width, kv_width = config.num_heads * config.key_width, config.kv_heads * config.key_width
    self.query = Linear(config.d_model, query_width, config.use_bias, config.dtype)
    self.key = Linear(config.d_model, kv_width, config.use_bias, config.dtype)
    self.value = Linear(config.d_model, kv_width, config.use_bias, config.dtype)
    self.output = Linear(query_width, config.d_model, config.use_bias, config.dtype)
    if config.qk_norm:
      self.query_norm = make_norm(config.norm, config.key_width, config.use_bias)
      self.key_norm = make_norm(config.norm, config.key_width, config.use_bias)
    self.config = config

  def queries_keys_values(self, x_BTD: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What enters the product, normed and turned: q (B, T, H, K); k and v, which may have fewer heads."""
    config = self.config
    heads = (*x_BTD.shape[:2], -1, config.key_width)
    # The value by itself: devices sum the gradient of joined kernels as one array, and no kernel should be smaller.
    projected = project(x_BTD, [self.query, self.key], [self.value])
    q_BTHK, k_BTHK, v_BTHK = (part.reshape(heads) for part in projected)
    if config.qk_norm:
      q_BTHK, k_BTHK = self.query_norm(q_BTHK), self.key_norm(k_BTHK)
    if config.position == 'rotary':
      q_BTHK, k_BTHK = rotate(q_BTHK), rotate(k_BTHK)
    return q_BTHK.astype(config.dtype), k_BTHK.astype(config.dtype), v_BTHK

  def __call__(
    self, x_BTD: jax.Array, dropout_key: jax.Array | None = None, documents: attention_kernels.Documents = None
  ) -> jax.Array:
    q_BTHK, k_BTHK, v_BTHK = self.queries_keys_values(x_BTD)
    causal = self.config.causal
    if dropout_key is None:
      read_BTHK = attention_kernels.attention(q_BTHK, k_BTHK, v_BTHK, causal, documents)
    else:
      read_BTHK = attention_kernels.plain_attention(
        q_BTHK, k_BTHK, v_BTHK, causal, self.config.dropout, dropout_key, documents
      )
    return self.output(read_BTHK.reshape(*x_BTD.shape[:2], -1))

  def observe(self, x_BTD: jax.Array, documents: attention_kernels.Documents = None) -> dict[str, dict[str, jax.Array]]:
    """What attention does with this input, a head at a time; see model/observation.py."""
    q_BTHK, k_BTHK, _ = self.queries_keys_values(x_BTD)
    entropy_H, largest_H = attention_kernels.attention_statistics(q_BTHK, k_BTHK, self.config.causal, documents)
    return {'mean': {'attention_entropy': entropy_H}, 'max': {'largest_logit': largest_H}}
