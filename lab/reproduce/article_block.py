"""The block of width 2 that the article computes by hand: its input, and weights for its attention."""

import math
from typing import Any

import jax.numpy as jnp

from model import ModelConfig

CONFIG = {
  'd_model': 2, 'num_heads': 1, 'd_ff': 1, 'feed_forward': 'relu', 'connection': 'none', 'position': 'none',
  'vocab_size': 2, 'num_layers': 1,
}  # fmt: skip
X = jnp.array([[[2.0, 0.0], [0.0, 1.0]]])  # positions 1 and 2; the article follows position 2
IDENTITY = [[1.0, 0.0], [0.0, 1.0]]
AVERAGE = {'value/kernel': IDENTITY, 'output/kernel': IDENTITY}  # queries and keys are 0: attention is uniform
THREE_TO_ONE = {  # attention weights 3/4, 1/4 in head 1 and 1/4, 3/4 in head 2: keys are 1 and 0, queries +-log 3
  'query/kernel': [[0.0, 0.0], [math.log(3), -math.log(3)]],
  'key/kernel': [[0.5, 0.5], [0.0, 0.0]],
}


def article_config(**changes: Any) -> ModelConfig:
  """The config of the article's block: one head, no norm, no position encoding."""
  return ModelConfig(**{**CONFIG, **changes})


def prefix_paths(part: str, weights: dict) -> dict:
  """The weights of a part of a block, such as `attention`, by their paths in the block."""
  return {f'{part}/{path}': value for path, value in weights.items()}
