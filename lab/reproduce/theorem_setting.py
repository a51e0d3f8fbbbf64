"""The setting in which Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, prove theorems."""

from lab.reproduce.model_parts import map_params
from model import ModelConfig

QUERY_AND_KEY = ('attention/query/kernel', 'attention/key/kernel')


def theorem_config(placement: str, num_layers: int, d_model: int) -> ModelConfig:
  """One head, every matrix d_model x d_model, Xavier initialisation, no biases, no mask, no position encoding."""
  return ModelConfig(
    num_layers=num_layers, d_model=d_model, num_heads=1, d_ff=d_model, feed_forward='relu', norm='layer',
    connection=placement, init='xavier', init_depth_scale=False, position='none', causal=False,
  )  # fmt: skip


def with_uniform_attention(blocks: dict) -> dict:
  """The parameters of the blocks with query and key kernels at 0, so that every position attends equally to all."""
  return map_params(blocks, lambda path, leaf: 0 * leaf if path in QUERY_AND_KEY else leaf)
