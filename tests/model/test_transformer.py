import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from flax import nnx
from tiny_models import ATTENTION_SETTINGS, distance, float64, model_params, quick, quick_jit, tiny

from model.config import ModelConfig
from model.counts import num_parameters
from model.transformer import apply, init, param_shapes, zero_taps

TOKENS = jnp.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])


def logits_of(config, params, tokens=TOKENS, key=None):
  return quick_jit(lambda params, key: apply(config, params, tokens, dropout_key=key)[0])(params, key)


MODELS = {
  'pre': {},
  'post': {'connection': 'post', 'norm': 'layer', 'use_bias': True, 'feed_forward': 'gelu'},
  'sandwich': {'connection': 'sandwich', 'embedding_norm': True, 'position': 'learned', 'tie_embeddings': True},
  'res_post': {'connection': 'res_post', 'qk_norm': True, 'feed_forward': 'geglu', 'position': 'sinusoidal'},
  'deepnorm': {'connection': 'deepnorm', 'norm': 'layer', 'feed_forward': 'relu', 'num_layers': 3},
  'none': {'connection': 'none', 'attention_residual': 0.5, 'use_bias': True, 'feed_forward': 'bilinear'},
  'rezero': {'rezero': True, 'num_heads': 4, 'num_kv_heads': 2, 'causal': False, 'feed_forward': 'relu2'},
  'parallel': {'parallel': True, 'head_dim': 6, 'num_heads': 3, 'feed_forward': 'reglu', 'use_bias': True},
  'no_residual': {'attention_residual': 0.0, 'feed_forward_residual': 0.0, 'feed_forward': 'silu'},
  'tied': {'init': 'gpt2', 'tie_embeddings': True, 'feed_forward': 'glu', 'use_bias': True, 'num_layers': 1},
}


@pytest.mark.parametrize('name', MODELS)
def test_the_model_matches_the_reference(name):
  config = tiny(**MODELS[name])
  params = model_params(config)
  logits, stats = quick_jit(functools.partial(apply, config))(params, TOKENS)
  assert distance(logits, reference.transformer(float64(params), np.asarray(TOKENS), config)) < 5e-6
  assert {leaf.shape for leaf in jax.tree.leaves(stats)} == {(config.num_layers,)}


@pytest.mark.slow
@pytest.mark.parametrize(
  'placement',
  [
    'pre',
    'post',
    *(pytest.param(name, marks=pytest.mark.slow) for name in ('sandwich', 'res_post', 'deepnorm', 'none')),
  ],
)
def test_scan_unrolled_and_remat_agree(placement):
  config = tiny(connection=placement)
  params = model_params(config)
  weights_BTV = np.random.default_rng(1).normal(size=(*TOKENS.shape, 11)).astype(np.float32)

  def run(**changes):
    def loss(params, taps):
      logits, stats = apply(dataclasses.replace(config, **changes), params, TOKENS, taps, full_stats=True)
      return jnp.sum(weights_BTV * logits), (logits, stats)

    (_, aux), gradients = quick_jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, zero_taps(config))
    return *aux, *gradients

  scanned = run()
  for changes in ({'unroll': 99}, {'remat': True}):
    assert all(distance(other, one) < 1e-5 for other, one in zip(run(**changes), scanned, strict=True))


@functools.cache
def influence(length=66, **changes):
  """|d logits[t] / d embedding[s]|, (t, s); every position has its own token, hence its own row of the table."""
  config = tiny(vocab_size=length, num_positions=length, **changes)
  params = model_params(config)
  weights_V = np.random.default_rng(1).normal(size=length).astype(np.float32)

  def weighted_logits(table):
    changed = params | {'embedding': params['embedding'] | {'token': table}}
    key = jax.random.key(0) if config.dropout else None
    return apply(config, changed, jnp.arange(length)[None], dropout_key=key)[0][0] @ weights_V

  return np.abs(quick_jit(jax.jacrev(weighted_logits))(params['embedding']['token'])).sum(-1)


SETTINGS = [*ATTENTION_SETTINGS, 'dropout', 'parallel', 'post']


@pytest.mark.parametrize('setting', quick(SETTINGS, ('multi_head', 'grouped', 'sink', 'dropout', 'post')))
def test_logits_depend_on_no_later_position(setting):
  others = {'dropout': {'dropout': 0.1}, 'parallel': {'parallel': True}, 'post': {'connection': 'post'}}
  matrix = influence(**(ATTENTION_SETTINGS | others)[setting])  # 66 positions: two blocks of queries
  np.testing.assert_array_equal(np.triu(matrix, 1), 0)
  assert (matrix[np.tri(66, dtype=bool)] > 0).mean() > 0.99


@pytest.mark.parametrize('length', [7, 66])
def test_without_a_causal_mask_logits_depend_on_every_position(length):
  assert (influence(length, causal=False) > 0).mean() > 0.99


def test_logits_in_bfloat16_are_float32_and_close():
  config = tiny(dtype='bfloat16')
  assert {leaf.dtype for leaf in jax.tree.leaves(param_shapes(config))} == {jnp.dtype('float32')}
  params = model_params(config)
  logits = apply(config, params, TOKENS)[0]  # not jitted: XLA may skip a rounding
  assert logits.dtype == jnp.float32
  assert 1e-4 < distance(logits, logits_of(tiny(), params)) < 3e-2
  rounded = np.asarray(logits.astype(jnp.bfloat16), np.float32)
  assert (rounded != np.asarray(logits)).any()  # the product accumulates in float32


def test_a_sequence_beyond_the_learned_positions_is_an_error():
  config = tiny(position='learned', num_positions=6)
  params = model_params(config)
  assert jax.eval_shape(functools.partial(apply, config), params, TOKENS[:, :6])[0].shape == (2, 6, 11)
  with pytest.raises(ValueError, match=r'7 positions.*6'):
    apply(config, params, TOKENS)


@pytest.mark.parametrize('scheme', quick(('fan_in', 'gpt2'), ('fan_in',)))
def test_tied_and_untied_logits_have_the_same_initial_scale(scheme):
  config = ModelConfig(vocab_size=2048, num_layers=1, d_model=16, num_heads=2, init=scheme)
  tokens = jnp.arange(256).reshape(4, 64)
  sizes = []
  for tied in (False, True):
    config = dataclasses.replace(config, tie_embeddings=tied)
    logits = quick_jit(lambda key, config=config: apply(config, init(config, key), tokens)[0])(jax.random.key(0))
    own = jnp.arange(2048) == tokens[..., None]  # with a tied head, the logit of the input token is large
    sizes.append(float(logits[~own].std()))
  np.testing.assert_allclose(sizes, (1.0 if scheme == 'fan_in' else 0.02 * 4) * np.ones(2), rtol=0.05)


def test_the_gradient_of_a_tied_table_sums_embedding_and_head():
  tied, untied = tiny(tie_embeddings=True), tiny()
  params = model_params(tied)
  table = params['embedding']['token']
  untied_params = params | {'head': {'kernel': table.T * 8**-0.5}}
  weights_BTV = np.random.default_rng(1).normal(size=(*TOKENS.shape, 11)).astype(np.float32)

  def gradient(config, params):
    return quick_jit(jax.grad(lambda params: jnp.sum(weights_BTV * apply(config, params, TOKENS)[0])))(params)

  total, parts = gradient(tied, params), gradient(untied, untied_params)
  embedding, head = parts['embedding']['token'], parts['head']['kernel'].T * 8**-0.5
  assert distance(total['embedding']['token'], embedding + head) < 1e-5
  assert all(np.abs(part).max() > 0.1 for part in (embedding, head))


def test_dropout_needs_a_key():
  config = tiny(dropout=0.3)
  params = model_params(config)
  run = quick_jit(lambda params, key: apply(config, params, TOKENS, dropout_key=key)[0])
  plain = logits_of(tiny(), params)
  np.testing.assert_array_equal(run(params, None), plain)
  outs = [np.asarray(run(params, jax.random.key(seed))) for seed in (0, 1, 0)]
  np.testing.assert_array_equal(outs[0], outs[2])
  assert min(distance(outs[0], plain), distance(outs[1], plain), distance(outs[0], outs[1])) > 0.05
  without_dropout = logits_of(tiny(), params, key=jax.random.key(0))
  np.testing.assert_array_equal(without_dropout, plain)


def test_dropout_masks_differ_by_layer_and_place(monkeypatch):
  keys, real = [], jax.random.bernoulli

  def spy(key, p, shape):
    jax.debug.callback(lambda data: keys.append(tuple(data.tolist())), jax.random.key_data(key))
    return real(key, p, shape)

  monkeypatch.setattr(jax.random, 'bernoulli', spy)
  config = tiny(dropout=0.3, num_layers=3)
  logits_of(config, model_params(config), key=jax.random.key(0))
  jax.effects_barrier()
  assert len(keys) == len(set(keys)) == 9


# For each field a value other than the default, with the other options that it requires.
SWITCHES = {
  'vocab_size': {'vocab_size': 12},
  'num_layers': {'num_layers': 3},
  'd_model': {'d_model': 12},
  'num_heads': {'num_heads': 4},
  'num_kv_heads': {'num_kv_heads': 1},
  'head_dim': {'head_dim': 6},
  'd_ff': {'d_ff': 13},
  'norm': {'norm': 'layer'},
  'connection': {'connection': 'res_post'},
  'feed_forward': {'feed_forward': 'geglu'},
  'attention_residual': {'attention_residual': 0.9},
  'feed_forward_residual': {'feed_forward_residual': 0.9},
  'rezero': {'rezero': True},
  'parallel': {'parallel': True},
  'qk_norm': {'qk_norm': True},
  'attention_gate': {'attention_gate': True},
  'attention_sink': {'attention_sink': True},
  'causal': {'causal': False},
  'position': {'position': 'none'},
  'num_positions': {'num_positions': 11, 'position': 'learned'},
  'embedding_norm': {'embedding_norm': True},
  'tie_embeddings': {'tie_embeddings': True},
  'use_bias': {'use_bias': True},
  'dropout': {'dropout': 0.1},
  'init': {'init': 'xavier'},
  'init_depth_scale': {'init_depth_scale': False},
  'dtype': {'dtype': 'bfloat16'},
  'remat': {'remat': True},
  'unroll': {'unroll': 2},
}
EXECUTION = {'remat', 'unroll'}  # change the program, not its results
INITIAL = {'init', 'init_depth_scale'}  # change only the initial values


def test_the_options_cover_every_field():
  assert set(SWITCHES) == {field.name for field in dataclasses.fields(ModelConfig) if field.init}


@pytest.mark.parametrize('field', SWITCHES)
def test_every_option_has_an_effect(field):
  base = tiny(**({'position': 'learned'} if field == 'num_positions' else {}))
  config = dataclasses.replace(base, **SWITCHES[field])
  assert getattr(config, field) != getattr(base, field)
  if field in INITIAL:
    draws = [quick_jit(functools.partial(init, c))(jax.random.key(0)) for c in (base, config)]
    assert distance(draws[0]['blocks'], draws[1]['blocks']) > 0.05
    return
  same_tree = param_shapes(config) == param_shapes(base)
  if field in EXECUTION:
    programs = [str(jax.make_jaxpr(functools.partial(apply, c))(model_params(c), TOKENS)) for c in (base, config)]
    assert same_tree
    assert programs[0] != programs[1]
  elif same_tree:
    logits = [logits_of(c, model_params(c), key=jax.random.key(0)) for c in (base, config)]
    assert distance(*logits) > 1e-3
  else:
    assert num_parameters(config) != num_parameters(base) or field == 'num_heads'


def test_importing_the_model_changes_no_setting_of_flax():
  """A user's own modules, in the same process, have Flax's defaults."""
  assert nnx.set_graph_mode.current_value() is nnx.set_graph_mode.get_default()
  assert nnx.set_graph_updates.current_value() is nnx.set_graph_updates.get_default()
  assert nnx.set_graph_mode.get_default() is True
