"""From token ids to the residual stream, and from the stream to logits."""

import jax
import jax.numpy as jnp
from flax import nnx

from model.config import ModelConfig
from model.initialisation import head_deviation, token_deviation
from model.position import sinusoidal


class Embedding(nnx.Module):
  """Token vectors, plus position vectors if they are learned or sinusoidal."""

  def __init__(self, config: ModelConfig):
    self.token = nnx.Param(jnp.zeros((config.vocab_size, config.d_model)))
    learned = config.position == 'learned'
    self.position = nnx.Param(jnp.zeros((config.num_positions, config.d_model))) if learned else None
    self.config = config

  def __call__(self, tokens_BT: jax.Array) -> jax.Array:
    """Embeds tokens.

    Args:
      tokens_BT: token ids, int32.

    Returns:
      x_BTD, float32.

    Raises:
      ValueError: if the sequence is longer than the learned position table.
    """
    x_BTD = self.token[...][tokens_BT]
    length = tokens_BT.shape[1]
    if self.position is not None:
      if length > self.config.num_positions:  # JAX would clamp the index silently
        raise ValueError(f'{length} positions, but the learned position table has {self.config.num_positions}')
      return x_BTD + self.position[...][:length]
    if self.config.position == 'sinusoidal':
      return x_BTD + sinusoidal(length, self.config.d_model)
    return x_BTD


class Head(nnx.Module):
  """Logits: x W + b, where W is a separate kernel or the transposed embedding table (Press & Wolf 2017).

  A tied product is scaled by the ratio of the initial standard deviations of head and embedding, 1/sqrt(D) for
  `fan_in`, so that tied and untied logits have the same scale at initialisation.
  """

  def __init__(self, config: ModelConfig):
    self.kernel = None if config.tie_embeddings else nnx.Param(jnp.zeros((config.d_model, config.vocab_size)))
    self.bias = nnx.Param(jnp.zeros(config.vocab_size)) if config.use_bias else None
    self.config = config

  def __call__(self, x_BTD: jax.Array, token_VD: jax.Array) -> jax.Array:
    """Computes logits.

    Args:
      x_BTD: the stream after the final norm, float32.
      token_VD: the embedding table, float32; read only if tied.

    Returns:
      logits_BTV, float32.
    """
    config = self.config
    if self.kernel is None:
      kernel_DV = token_VD.T * (head_deviation(config) / token_deviation(config))
    else:
      kernel_DV = self.kernel[...]
    flat = x_BTD.reshape(-1, config.d_model).astype(config.dtype)
    logits = jnp.dot(flat, kernel_DV.astype(config.dtype), preferred_element_type=jnp.float32)
    logits = logits if self.bias is None else logits + self.bias[...]
    return logits.reshape(*x_BTD.shape[:2], config.vocab_size)
