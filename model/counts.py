"""Parameters and FLOPs of a model, counted from the shapes of its parameter tree."""

import math

import jax

from model.config import ModelConfig
from model.transformer import param_shapes


def num_parameters(config: ModelConfig) -> int:
  """The exact number of learned parameters: all elements of the tree that `model.init` returns."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(param_shapes(config)))


def matmul_parameters(config: ModelConfig) -> int:
  """N: the number of parameters in matrix products, including the head, tied or not, but not the embedding lookup."""
  leaves = jax.tree.leaves_with_path(param_shapes(config))
  kernels = sum(math.prod(leaf.shape) for path, leaf in leaves if path[-1].key == 'kernel')
  return kernels + config.tie_embeddings * config.vocab_size * config.d_model


def flops_per_token(config: ModelConfig, sequence_length: int) -> int:
  """FLOPs of one training step per token: 6 (N + P) + 6 L T d under a causal mask, 6 (N + P) + 12 L T d without.

  N is `matmul_parameters`, P the products of the connections that are not one per parameter (`extra_products`; 0 for
  one stream), d = num_heads * head_dim, T = sequence_length. A matrix product costs 2 FLOPs per parameter
  in the forward pass and 4 in the backward pass; under a causal mask attention covers half of the T positions. Norms,
  softmax, activations and recomputation under remat are not counted (Kaplan et al. 2020, section 2.1, plus the
  attention term of Chowdhery et al. 2022, appendix B, halved under the mask).
  """
  attention = (6 if config.causal else 12) * config.num_layers * sequence_length * config.num_heads * config.key_width
  return 6 * (matmul_parameters(config) + config.connection_class.extra_products(config)) + attention
