"""Distributions of initial values, and how one layer of a parameter is drawn."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Normal(NamedTuple):
  """N(0, standard_deviation^2)."""

  standard_deviation: float


class Constant(NamedTuple):
  """Every element has the same value."""

  value: float


class Orthogonal(NamedTuple):
  """A random matrix with orthonormal rows, or columns if it has fewer of them, uniformly distributed (Haar).

  Attributes:
    transpose_of: the path of a kernel of the transposed shape, also orthogonal, of which it is the transpose: if that
      one has orthonormal rows, the product of both is the identity. Empty: drawn independently.
  """

  transpose_of: str = ''


Distribution = Normal | Constant | Orthogonal


def draw_one(source: Distribution, shape: tuple[int, ...], key: jax.Array) -> jax.Array:
  """The initial values of one layer of a parameter: an array of `shape`, float32."""
  if isinstance(source, Constant):
    return jnp.full(shape, source.value, jnp.float32)
  if isinstance(source, Orthogonal):
    return _orthogonal(shape, key)
  # Without the barrier XLA merges the scale with a factor inside `normal`: jitted and eager bits would differ.
  return source.standard_deviation * jax.lax.optimization_barrier(jax.random.normal(key, shape, jnp.float32))


def _orthogonal(shape: tuple[int, ...], key: jax.Array) -> jax.Array:
  """A matrix of either shape from one key is the transpose of that of the other shape."""
  rows, columns = max(shape), min(shape)
  # With the diagonal of R positive, Q is unique, and uniformly distributed (Mezzadri 2007, section 5).
  q, r = jnp.linalg.qr(jax.random.normal(key, (rows, columns), jnp.float32))
  q = q * jnp.sign(jnp.diagonal(r))
  return q if shape[0] == rows else q.T
