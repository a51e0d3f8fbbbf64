"""Position encodings: rotary rotates queries and keys; the others add a vector to the embedding."""

import jax
import jax.numpy as jnp
import numpy as np

BASE = 10_000.0  # of the frequencies, rotary and sinusoidal; also called theta


def angles(length: int, pairs: int) -> np.ndarray:
  """The angle t / BASE^(i / pairs) of position t and pair i: (length, pairs), float32."""
  return np.outer(np.arange(length), BASE ** (-np.arange(pairs) / pairs)).astype(np.float32)


def rotate(x_BTHK: jax.Array) -> jax.Array:
  """Rotary position embedding: rotates each pair (x_i, x_{i + K/2}) by its angle (Su et al. 2021, equation 34).

  Su et al. pair adjacent coordinates instead. The inner product of two rotated vectors depends on their positions only
  through the difference.

  Args:
    x_BTHK: queries or keys, any float dtype; K is even.

  Returns:
    (B, T, H, K), float32.
  """
  x_BTHK = x_BTHK.astype(jnp.float32)
  half = x_BTHK.shape[-1] // 2
  angle_TK = angles(x_BTHK.shape[1], half)
  cos_TK, sin_TK = np.cos(angle_TK), np.sin(angle_TK)
  cos_T1K, sin_T1K = cos_TK[:, None, :], sin_TK[:, None, :]
  first, second = x_BTHK[..., :half], x_BTHK[..., half:]
  return jnp.concatenate([first * cos_T1K - second * sin_T1K, second * cos_T1K + first * sin_T1K], -1)


def sinusoidal(length: int, width: int) -> np.ndarray:
  """The sinusoidal table of Vaswani et al. 2017, section 3.5, sines then cosines: (length, width), float32."""
  angle = angles(length, width // 2)
  return np.concatenate([np.sin(angle), np.cos(angle)], -1)
