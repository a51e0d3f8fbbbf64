"""Shared by the tests of the model: tiny configs, random parameters, and a distance between arrays."""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import strategies as st

from model import config as config_module
from model.activations import ACTIVATIONS
from model.block import merge_module, split_module
from model.config import ModelConfig
from model.norm import NORMS
from model.transformer import init, param_shapes

PLACEMENTS = ('pre', 'post', 'sandwich', 'res_post', 'deepnorm', 'none')

# Most compiled programs in these tests run once: compile quickly rather than optimise.
quick_jit = functools.partial(
  jax.jit,
  compiler_options={
    'xla_backend_optimization_level': 0,
    'xla_llvm_disable_expensive_passes': True,
    'xla_cpu_use_fusion_emitters': False,
  },
)


def tiny(**changes) -> ModelConfig:
  """The smallest config in which all widths differ."""
  sizes = {'vocab_size': 11, 'num_layers': 2, 'd_model': 8, 'num_heads': 2, 'd_ff': 12, 'num_positions': 10}
  return ModelConfig(**(sizes | changes))


def random_params(shapes, seed: int = 0):
  """Fills a tree of shapes: kernels N(0, 1/fan_in), gains around 1, biases and scales away from 0."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    noise, name = rng.normal(size=leaf.shape), path[-1].key
    if name == 'kernel':
      noise = noise / leaf.shape[-2] ** 0.5
    elif name == 'gain':
      noise = 1 + 0.3 * noise
    elif name == 'bias':
      noise = 0.3 * noise
    return jnp.asarray(noise, jnp.float32)

  return jax.tree.map_with_path(draw, shapes)


def model_params(config: ModelConfig, seed: int = 0):
  """Random parameters of a whole model."""
  return random_params(param_shapes(config), seed)


@functools.cache
def initial_params(config: ModelConfig, seed: int = 0):
  """The parameters with which training starts; compiled, since its operations one by one take longer."""
  return quick_jit(functools.partial(init, config))(jax.random.key(seed))


def filled(module: nnx.Module, seed: int = 0):
  """A module with random parameters, and those parameters in float64."""
  definition, shapes = split_module(module)
  params = random_params(shapes, seed)
  return merge_module(definition, params), float64(params)


def with_zero_branches(params):
  """The parameters with the last kernel (and bias) of each branch at zero."""
  blocks = params.get('blocks', params)
  zeroed = blocks | {
    'attention': blocks['attention'] | {'output': jax.tree.map(jnp.zeros_like, blocks['attention']['output'])},
    'feed_forward': blocks['feed_forward'] | {'down': jax.tree.map(jnp.zeros_like, blocks['feed_forward']['down'])},
  }
  return params | {'blocks': zeroed} if 'blocks' in params else zeroed


def float64(tree):
  return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def random_stream(*shape: int, seed: int = 0):
  """A float32 stream, and the same numbers in float64."""
  x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
  return jnp.asarray(x), x.astype(np.float64)


def distance(actual, expected) -> float:
  """The norm of the difference relative to the norm of `expected`, over all arrays of two trees."""
  difference = size = 0.0
  for a, e in zip(jax.tree.leaves(float64(actual)), jax.tree.leaves(float64(expected)), strict=True):
    assert a.shape == e.shape
    difference, size = difference + ((a - e) ** 2).sum(), size + (e**2).sum()
  assert size > 0
  return float(np.sqrt(difference / size))


# Every configuration of attention, as changes to the tiny config.
def quick(names, kept):
  """A parametrisation over names, in which those that are not kept are slow."""
  return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


ATTENTION_SETTINGS = {
  'multi_head': {},
  'one_head': {'num_heads': 1},
  'grouped': {'num_heads': 4, 'num_kv_heads': 2},
  'multi_query': {'num_heads': 4, 'num_kv_heads': 1},
  'explicit_head_dim': {'num_heads': 3, 'head_dim': 6},
  'qk_norm': {'qk_norm': True, 'num_heads': 4, 'num_kv_heads': 2},
  'qk_layer_norm': {'qk_norm': True, 'norm': 'layer', 'use_bias': True},
  'bias': {'use_bias': True},
  'gate': {'attention_gate': True, 'use_bias': True},
  'sink': {'attention_sink': True, 'num_heads': 4, 'num_kv_heads': 2},
  'position_none': {'position': 'none'},
  'position_learned': {'position': 'learned'},
  'position_sinusoidal': {'position': 'sinusoidal'},
}


def choices(literal):
  return st.sampled_from(typing.get_args(literal))


@st.composite
def configs(draw):
  """Valid configs, with every option drawn at random."""
  flags = (
    'rezero', 'parallel', 'qk_norm', 'attention_gate', 'attention_sink', 'causal', 'embedding_norm', 'tie_embeddings',
    'use_bias',
  )  # fmt: skip
  fields = {name: draw(st.booleans()) for name in (*flags, 'init_depth_scale', 'remat')}
  fields |= {
    'vocab_size': draw(st.integers(1, 20)),
    'num_layers': draw(st.integers(1, 3)),
    'd_model': 2 * draw(st.integers(1, 8)),
    'num_heads': draw(st.sampled_from([1, 2, 4, 6])),
    'num_kv_heads': draw(st.sampled_from([0, 1, 2])),
    'head_dim': draw(st.sampled_from([0, 2, 6])),
    'd_ff': draw(st.sampled_from([0, 7])),
    'num_positions': draw(st.integers(1, 9)),
    'norm': draw(st.sampled_from(list(NORMS))),
    'connection': draw(st.sampled_from(PLACEMENTS)),
    'feed_forward': draw(st.sampled_from(list(ACTIVATIONS))),
    'position': draw(choices(config_module.Position)),
    'init': draw(choices(config_module.Init)),
    'dtype': draw(choices(config_module.DType)),
    'attention_residual': draw(st.sampled_from([1.0, 1.0, 0.0])),
    'feed_forward_residual': draw(st.sampled_from([1.0, 1.0, 0.0])),
    'dropout': draw(st.sampled_from([0.0, 0.5])),
  }
  if fields['connection'] != 'pre':  # otherwise three of four draws would be invalid
    fields['parallel'] = False
    fields['rezero'] &= fields['connection'] == 'none'
  if fields['parallel'] or fields['connection'] == 'deepnorm':
    fields['attention_residual'] = fields['feed_forward_residual'] = 1.0
  fields['num_kv_heads'] = min(fields['num_kv_heads'], fields['num_heads'])
  if fields['d_model'] % fields['num_heads'] or fields['d_model'] // fields['num_heads'] % 2:
    fields['head_dim'] = 4
  assert {*fields, 'unroll'} == {field.name for field in dataclasses.fields(ModelConfig) if field.init}
  return ModelConfig(**fields)
