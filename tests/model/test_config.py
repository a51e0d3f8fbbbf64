import dataclasses

import jax
import pytest
from hypothesis import given, settings
from tiny_models import configs

from model.config import ConfigError, ModelConfig
from model.transformer import param_shapes

# (fields, words that the message must hold: the field as a flag spells it, and what would be right)
REFUSED = [
  *[({name: 0}, [f'model.{name}=0', 'at least 1']) for name in ('vocab_size', 'num_layers', 'd_model', 'num_heads')],
  *[({name: -3}, [f'model.{name}=-3', 'at least 1']) for name in ('num_positions', 'unroll')],
  *[({name: -1}, [f'model.{name}=-1', 'or 0 for the default']) for name in ('num_kv_heads', 'head_dim', 'd_ff')],
  ({'dropout': 1.0}, ['model.dropout=1.0', 'below 1']),
  ({'dropout': -0.1}, ['model.dropout=-0.1', 'at least 0']),
  ({'d_model': 64, 'num_heads': 5}, ['model.num_heads=5', 'model.d_model=64', '4 does', 'model.head_dim']),
  ({'d_model': 60, 'num_heads': 13}, ['model.num_heads=13', '12 does']),
  ({'num_heads': 4, 'num_kv_heads': 3}, ['model.num_kv_heads=3', 'model.num_heads=4']),
  ({'num_heads': 2, 'num_kv_heads': 4}, ['model.num_kv_heads=4', 'model.num_heads=2']),
  ({'head_dim': 5}, ['model.position=rotary', 'model.head_dim even', 'another model.position']),
  ({'d_model': 12, 'num_heads': 4}, ['model.position=rotary', 'a head has 3']),
  ({'d_model': 9, 'num_heads': 3, 'position': 'sinusoidal'}, ['model.position=sinusoidal', 'even model.d_model', '9']),
  ({'norm_placement': 'deepnorm', 'attention_residual': 0.5}, ['deepnorm', 'model.attention_residual=0.5', 'at 1']),
  ({'norm_placement': 'deepnorm', 'feed_forward_residual': 0.0}, ['model.feed_forward_residual=0.0', 'at 1']),
  *[
    ({'rezero': True, 'norm_placement': placement}, ['model.rezero', 'model.norm_placement=pre or none', placement])
    for placement in ('post', 'sandwich', 'res_post', 'deepnorm')
  ],
  *[
    ({'parallel': True, 'norm_placement': placement}, ['model.parallel', 'model.norm_placement=pre', placement])
    for placement in ('post', 'sandwich', 'res_post', 'deepnorm', 'none')
  ],
  ({'parallel': True, 'attention_residual': 0.5}, ['model.parallel', 'must be equal', '0.5', '1.0']),
  ({'parallel': True, 'feed_forward_residual': 0.5}, ['model.feed_forward_residual must be equal']),
  ({'norm': 'batch'}, ["model.norm='batch'", 'rms, layer']),
  ({'norm_placement': 'prenorm'}, ["model.norm_placement='prenorm'", 'pre, post, sandwich, res_post, deepnorm, none']),
  ({'feed_forward': 'tanh'}, ["model.feed_forward='tanh'", 'relu, gelu, silu, relu2, glu, swiglu']),
  ({'position': 'alibi'}, ["model.position='alibi'", 'rotary, learned, sinusoidal, none']),
  ({'init': 'zeros'}, ["model.init='zeros'", 'fan_in, xavier, gpt2']),
  ({'dtype': 'float16'}, ["model.dtype='float16'", 'float32, bfloat16']),
  ({'num_layers': 2.0}, ['model.num_layers=2.0', 'must be int']),
  ({'num_layers': True}, ['model.num_layers=True', 'must be int']),
  ({'d_ff': '12'}, ["model.d_ff='12'", 'must be int']),
  ({'remat': 1}, ['model.remat=1', 'must be bool']),
  ({'rezero': None}, ['model.rezero=None', 'must be bool']),
  ({'dropout': 'a lot'}, ["model.dropout='a lot'", 'must be float']),
  ({'dropout': True}, ['model.dropout=True', 'must be float']),
  *[
    ({'attention_residual': float(bad)}, [f'model.attention_residual={bad}', 'finite'])
    for bad in ('nan', 'inf', '-inf')
  ],
]


@pytest.mark.parametrize(('fields', 'words'), REFUSED, ids=lambda value: str(value) if isinstance(value, dict) else '')
def test_refused_in_one_line_that_says_what_would_be_right(fields, words):
  with pytest.raises(ConfigError) as error:
    ModelConfig(**fields)
  message = str(error.value)
  assert '\n' not in message
  assert all(word in message for word in words), message


def test_what_is_close_to_refused_is_taken():
  ModelConfig(d_model=12, num_heads=4, position='none')
  ModelConfig(d_model=12, num_heads=5, head_dim=2)
  ModelConfig(d_model=9, num_heads=3, position='learned')
  ModelConfig(num_layers=3, unroll=48, num_kv_heads=1, dropout=0.99)
  ModelConfig(parallel=True, attention_residual=0.5, feed_forward_residual=0.5)
  ModelConfig(rezero=True, norm_placement='none')
  ModelConfig(attention_residual=-1.0, norm_placement='post')


def test_a_config_is_frozen_and_hashable_and_equal_by_value():
  config = ModelConfig(num_layers=3)
  with pytest.raises(dataclasses.FrozenInstanceError):
    config.num_layers = 4
  assert len({config, ModelConfig(num_layers=3), ModelConfig()}) == 2
  with pytest.raises(ConfigError):
    dataclasses.replace(config, num_heads=7)


def test_an_int_for_a_float_becomes_one():
  config = ModelConfig(dropout=0, attention_residual=1)
  assert (type(config.dropout), type(config.attention_residual)) == (float, float)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(configs())
def test_the_parameter_count_is_that_of_the_tree(config):
  leaves = jax.tree.leaves(param_shapes(config))
  assert config.num_parameters == sum(leaf.size for leaf in leaves)


def test_flops_by_hand():
  config = ModelConfig(
    vocab_size=10, num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, d_ff=24, feed_forward='relu', use_bias=True
  )
  attention = 16 * 16 + 16 * 8 + 16 * 8 + 16 * 16  # query, key, value, output
  feed_forward = 16 * 24 + 24 * 16
  matmul = 2 * (attention + feed_forward) + 16 * 10
  assert config.matmul_parameters == matmul == 3232
  assert config.flops_per_token(8) == 6 * 3232 + 6 * 2 * 8 * 16 == 20_928


def test_flops_by_hand_without_a_mask_and_with_a_tied_head():
  config = ModelConfig(
    vocab_size=7, num_layers=3, d_model=8, num_heads=2, head_dim=6, d_ff=5, causal=False, tie_embeddings=True,
    position='learned', norm_placement='sandwich', qk_norm=True, remat=True,
  )  # fmt: skip
  matmul = 3 * (4 * 8 * 12 + 3 * 8 * 5) + 8 * 7  # gated: three kernels; the tied head is a product all the same
  assert config.matmul_parameters == matmul == 1568
  assert config.flops_per_token(9) == 6 * 1568 + 12 * 3 * 9 * 12 == 13_296


def test_gated_and_ungated_parameters_match():
  for d_model in range(64, 513):  # ungated d_ff from 256 on
    fields = {'d_model': d_model, 'num_heads': 1, 'position': 'none', 'num_layers': 1, 'vocab_size': 1}
    gated, ungated = (ModelConfig(feed_forward=name, **fields).num_parameters for name in ('swiglu', 'relu'))
    assert abs(gated - ungated) <= 0.002 * 2 * d_model * 4 * d_model
  assert ModelConfig(d_model=768, feed_forward='geglu').ff_width == 2048  # Shazeer 2020
  assert ModelConfig(d_model=768, feed_forward='gelu').ff_width == 3072
  assert ModelConfig(d_model=64, feed_forward='glu').ff_width == 171
