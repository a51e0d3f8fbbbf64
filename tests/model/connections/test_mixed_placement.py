import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
import stream_reference
from tiny_models import distance, float64, model_params, quick_jit, tiny

from model.config import ConfigError
from model.counts import num_parameters
from model.transformer import apply, init, zero_taps

TOKENS = jnp.array([[3, 1, 4], [1, 5, 9]])
WEIGHTS_BTV = np.random.default_rng(7).normal(size=(2, 3, 11)).astype(np.float32)


def logits(config, params):
  return quick_jit(lambda params: apply(config, params, TOKENS)[0])(params)


def norm(p, x):
  return reference.norm(p, x, 'rms')


@pytest.mark.parametrize(('k', 'layers', 'a'), [(1, 2, 1.0), (2, 3, 0.5)])
def test_mix_ln_matches_the_equations(k, layers, a):
  config = tiny(connection=f'mix_ln:k={k}', num_layers=layers, attention_residual=a, feed_forward_residual=a)
  params = model_params(config)

  def sublayer(index, p, x, F):
    return norm(p['norm'], a * x + F(x)) if index <= 2 * k else a * x + F(norm(p['norm'], x))

  assert distance(logits(config, params), stream_reference.logits(float64(params), TOKENS, config, sublayer)) < 3e-6


@pytest.mark.slow
@pytest.mark.parametrize(('k', 'placement'), [(0, 'pre'), (2, 'post')])
def test_mix_ln_at_its_ends(k, placement):
  """The same parameters with the same initial values, the same logits, and the same gradient on each path."""

  def run(config):
    params = init(config, jax.random.key(0))

    def loss(params, taps):
      out = apply(config, params, TOKENS, taps)[0]
      return jnp.sum(WEIGHTS_BTV * out), out

    return params, jax.grad(loss, (0, 1), has_aux=True)(params, zero_taps(config))

  configs = [tiny(connection=name) for name in (f'mix_ln:k={k}', placement)]
  actual, expected = (quick_jit(functools.partial(run, config))() for config in configs)
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize(('layers', 'k'), [(3, 0), (4, 1), (7, 1), (12, 3)])
def test_mix_ln_by_default_has_a_quarter_of_its_blocks_post(layers, k):
  config, explicit = (tiny(connection=c, num_layers=layers) for c in ('mix_ln', f'mix_ln:k={k}'))
  params = model_params(config)
  assert 'final_norm' in params
  np.testing.assert_array_equal(logits(config, params), logits(explicit, params))
  if k:
    assert distance(logits(tiny(connection=f'mix_ln:k={k - 1}', num_layers=layers), params), logits(config, params)) > 0


def keel(num_layers, index, p, x, F):
  added = F(norm(p['norm'], x))
  if index == 1:
    return x + added
  if index == 2:
    return norm(p['output_norm'], x + added)
  return norm(p['output_norm'], 2 * num_layers * x + added)


@pytest.mark.parametrize('layers', [1, 3])
def test_keel_matches_the_equations(layers):
  config = tiny(connection='keel', num_layers=layers)
  params = model_params(config)
  sublayer = functools.partial(keel, layers)
  expected = stream_reference.logits(float64(params), TOKENS, config, sublayer, final_norm=False)
  assert distance(logits(config, params), expected) < 3e-6


def stream_gradients(connection, layers=12):
  """Before each sublayer of an untrained model and at its output: the skip part of the gradient, and all of it."""
  config = tiny(
    connection=connection, num_layers=layers, d_model=32, d_ff=128, feed_forward='relu', init_depth_scale=False
  )

  def run():
    out = functools.partial(apply, config, init(config, jax.random.key(0)), TOKENS)
    return jax.grad(lambda taps: jnp.sum(WEIGHTS_BTV * out(taps)[0]))(zero_taps(config))

  taps = quick_jit(run)()
  sublayers, output = np.asarray(taps['blocks'], np.float64).reshape(-1, 3), float(taps['output'][0])
  return np.sqrt(sublayers[:, 0]), np.sqrt(np.append(sublayers @ [1, 1, 2], output))


@pytest.mark.slow
def test_keel_keeps_the_untrained_gradient_on_the_skip_path_where_post_norm_loses_it():
  """The factor of the skip path over all sublayers is about 2^(-0.8 L) under post; the branches make up for it."""
  skip, total = stream_gradients('keel')
  assert np.abs(np.log2(total / total[-1])).max() < 0.5
  assert np.prod(skip / total[1:]) > 0.5
  skip, total = stream_gradients('post')
  assert 2.0**-12 < np.prod(skip / total[1:]) < 2.0**-7


def test_parameters_beyond_those_of_pre():
  plain = num_parameters(tiny())
  assert num_parameters(tiny(connection='mix_ln:k=1')) == plain
  assert num_parameters(tiny(connection='keel')) == plain + 2 * 2 * 8 - 8  # N of each sublayer, and no final norm


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'connection': 'mix_ln:k=-2'}, 'mix_ln:k=-2: must be at least 0, or -1 for a quarter of the blocks'),
    ({'connection': 'mix_ln:k=3'}, r'mix_ln:k=3: k must be at most model\.num_layers=2'),
    ({'connection': 'mix_ln:k=0.5'}, "mix_ln:k='0.5': must be int"),
    ({'connection': 'mix_ln', 'rezero': True}, r'model\.rezero requires'),
    ({'connection': 'keel', 'attention_residual': 0.5}, 'has no residual scale'),
    ({'connection': 'keel', 'parallel': True}, r'model\.parallel requires'),
  ],
)
def test_refusals(changes, message):
  with pytest.raises(ConfigError, match=message):
    tiny(**changes)
