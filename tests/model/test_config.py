import dataclasses

import pytest

from model.config import ConfigError, ModelConfig

# (fields, substrings of the message: the field as a flag spells it, and what would be valid)
INVALID = [
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
  ({'d_model': 12, 'num_heads': 4}, ['model.position=rotary', 'the head width is 3']),
  ({'d_model': 9, 'num_heads': 3, 'position': 'sinusoidal'}, ['model.position=sinusoidal', 'even model.d_model', '9']),
  ({'connection': 'deepnorm', 'attention_residual': 0.5}, ['deepnorm', 'model.attention_residual=0.5', 'be 1']),
  ({'connection': 'deepnorm', 'feed_forward_residual': 0.0}, ['model.feed_forward_residual=0.0', 'be 1']),
  *[
    ({'rezero': True, 'connection': placement}, ['model.rezero', 'model.connection=pre or none', placement])
    for placement in ('post', 'sandwich', 'res_post', 'deepnorm')
  ],
  *[
    ({'parallel': True, 'connection': placement}, ['model.parallel', 'model.connection=pre', placement])
    for placement in ('post', 'sandwich', 'res_post', 'deepnorm', 'none')
  ],
  ({'parallel': True, 'attention_residual': 0.5}, ['model.parallel', 'must be equal', '0.5', '1.0']),
  ({'parallel': True, 'feed_forward_residual': 0.5}, ['model.feed_forward_residual must be equal']),
  ({'norm': 'batch'}, ["model.norm='batch'", 'rms, layer']),
  ({'connection': 'prenorm'}, ["model.connection='prenorm'", 'pre, post, sandwich, res_post, deepnorm, none']),
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


@pytest.mark.parametrize(('fields', 'parts'), INVALID, ids=lambda value: str(value) if isinstance(value, dict) else '')
def test_an_invalid_config_is_refused_in_one_line_with_a_remedy(fields, parts):
  with pytest.raises(ConfigError) as error:
    ModelConfig(**fields)
  message = str(error.value)
  assert '\n' not in message
  assert all(part in message for part in parts), message


def test_configs_that_are_nearly_invalid_are_valid():
  ModelConfig(d_model=12, num_heads=4, position='none')
  ModelConfig(d_model=12, num_heads=5, head_dim=2)
  ModelConfig(d_model=9, num_heads=3, position='learned')
  ModelConfig(num_layers=3, unroll=48, num_kv_heads=1, dropout=0.99)
  ModelConfig(parallel=True, attention_residual=0.5, feed_forward_residual=0.5)
  ModelConfig(rezero=True, connection='none')
  ModelConfig(attention_residual=-1.0, connection='post')


def test_a_config_is_frozen_hashable_and_equal_by_value():
  config = ModelConfig(num_layers=3)
  with pytest.raises(dataclasses.FrozenInstanceError):
    config.num_layers = 4
  assert len({config, ModelConfig(num_layers=3), ModelConfig()}) == 2
  with pytest.raises(ConfigError):
    dataclasses.replace(config, num_heads=7)


def test_an_int_in_a_float_field_is_converted():
  config = ModelConfig(dropout=0, attention_residual=1)
  assert (type(config.dropout), type(config.attention_residual)) == (float, float)


def test_width_of_the_feed_forward():
  assert ModelConfig(d_model=768, feed_forward='geglu').ff_width == 2048  # Shazeer 2020
  assert ModelConfig(d_model=768, feed_forward='gelu').ff_width == 3072
  assert ModelConfig(d_model=64, feed_forward='glu').ff_width == 171


def test_gated_and_ungated_feed_forwards_have_the_same_number_of_parameters():
  for d_model in range(64, 513):  # ungated d_ff from 256 on
    gated, ungated = (
      ModelConfig(d_model=d_model, num_heads=1, position='none', feed_forward=name) for name in ('swiglu', 'relu')
    )
    assert abs(3 * gated.ff_width - 2 * ungated.ff_width) * d_model <= 0.002 * 2 * d_model * 4 * d_model
