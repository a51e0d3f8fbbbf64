import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, filled, float64, initial_params, model_params, quick_jit, random_stream, tiny

from model import apply, num_parameters
from model.block import merge_module, split_module
from model.norm import LayerNorm, make_norm


@pytest.mark.parametrize('size', [1.0, 1e-3, 1e4])  # at 1e-3 the mean square is as small as epsilon
@pytest.mark.parametrize(('kind', 'use_bias'), [('rms', False), ('rms', True), ('layer', False), ('layer', True)])
def test_norm_matches_the_reference(kind, use_bias, size):
  norm, params = filled(make_norm(kind, 12, use_bias))
  assert set(params) == ({'gain', 'bias'} if kind == 'layer' and use_bias else {'gain'})
  x, exact = random_stream(3, 5, 12)
  x, exact = size * (x + 2), size * (exact + 2)  # a mean far from 0, where the two kinds differ
  assert distance(norm(x), reference.norm(params, exact, kind)) < 1e-6


@pytest.mark.parametrize('kind', ['rms', 'layer'])
def test_a_constant_input_stays_finite(kind):
  norm, params = filled(make_norm(kind, 12, True))
  np.testing.assert_allclose(norm(jnp.zeros((2, 12))), np.broadcast_to(params.get('bias', 0), (2, 12)), atol=1e-6)
  assert np.isfinite(norm(jnp.full((2, 12), 3.0))).all()


@pytest.mark.parametrize('kind', ['rms', 'layer'])
def test_norms_compute_in_float32(kind):
  norm, params = filled(make_norm(kind, 64, True))
  x = (random_stream(4, 64)[0] + 2).astype(jnp.bfloat16)
  assert norm(x).dtype == jnp.float32
  assert distance(norm(x), reference.norm(params, np.asarray(x, np.float64), kind)) < 1e-6


BOUNDED = {'dyt': {'alpha', 'gain', 'bias'}, 'derf': {'alpha', 'shift', 'gain', 'bias'}}


@pytest.mark.parametrize('use_bias', [False, True])
@pytest.mark.parametrize('kind', BOUNDED)
def test_a_bounded_norm_matches_the_reference_and_is_elementwise(kind, use_bias):
  norm, params = filled(make_norm(kind, 12, use_bias))
  assert set(params) == BOUNDED[kind]  # a bias in any case
  x, exact = random_stream(3, 5, 12)
  assert distance(norm(x), reference.norm(params, exact, kind)) < 1e-6
  half = x.astype(jnp.bfloat16)
  assert norm(half).dtype == jnp.float32
  assert distance(norm(half), reference.norm(params, np.asarray(half, np.float64), kind)) < 1e-6
  one = x.at[..., 1:].set(7.0)  # other elements do not matter: no reduction over the width
  np.testing.assert_allclose(norm(one)[..., 0], norm(x)[..., 0], rtol=1e-6)
  assert distance(norm(2 * x), norm(x)) > 0.1
  rms, _ = filled(make_norm('rms', 12, False))
  assert distance(rms(2 * x), rms(x)) < 1e-5


@pytest.mark.parametrize('kind', BOUNDED)
def test_gradients_of_a_bounded_norm(kind):
  """With respect to its parameters and its input, against central differences of the reference."""
  norm, params = filled(make_norm(kind, 4, True))
  x, exact = random_stream(3, 4)
  definition, state = split_module(norm)
  gradient = jax.grad(lambda state, x: jnp.sum(jnp.sin(merge_module(definition, state)(x))), argnums=(0, 1))(state, x)

  def value(params, x):
    return np.sin(reference.norm(params, x, kind)).sum()

  for name, exact_value in params.items():
    for index in np.ndindex(exact_value.shape):
      step = np.zeros(exact_value.shape)
      step[index] = 1e-5
      up, down = (value(params | {name: exact_value + sign * step}, exact) for sign in (1, -1))
      assert gradient[0][name][index] == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-5)
  for index in np.ndindex(exact.shape):
    step = np.zeros(exact.shape)
    step[index] = 1e-5
    slope = (value(params, exact + step) - value(params, exact - step)) / 2e-5
    assert gradient[1][index] == pytest.approx(slope, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize('kind', ['dyt', pytest.param('derf', marks=pytest.mark.slow)])
def test_a_bounded_norm_is_used_in_every_place(kind):
  """A sandwich with QK norm and an embedding norm: initial values, outputs, and the number of parameters."""
  config = tiny(norm=kind, qk_norm=True, embedding_norm=True, connection='sandwich')
  params = initial_params(config)
  norms = {'embedding_norm': params['embedding_norm'], 'final_norm': params['final_norm']}
  norms |= {name: params['blocks'][name] for name in ('attention_norm', 'feed_forward_output_norm')}
  norms |= {name: params['blocks']['attention'][name] for name in ('query_norm', 'key_norm')}
  for name, norm in norms.items():
    layers = () if name in ('embedding_norm', 'final_norm') else (2,)
    width = 4 if name in ('query_norm', 'key_norm') else 8
    shapes = {'alpha': layers, 'shift': layers, 'gain': (*layers, width), 'bias': (*layers, width)}
    values = {'alpha': 0.5, 'shift': 0, 'gain': 1, 'bias': 0}
    assert set(norm) == BOUNDED[kind]
    for part, array in norm.items():
      assert array.shape == shapes[part]
      assert (np.asarray(array) == values[part]).all()
  drawn = model_params(config)
  tokens = jnp.arange(14).reshape(2, 7) % 11
  logits, _ = quick_jit(functools.partial(apply, config))(drawn, tokens)
  assert distance(logits, reference.transformer(float64(drawn), tokens, config)) < 1e-5
  assert num_parameters(config) - num_parameters(tiny(qk_norm=True, embedding_norm=True, connection='sandwich')) == (
    (4 * 2 + 2) * (8 + len(BOUNDED[kind]) - 2) + 2 * 2 * (4 + len(BOUNDED[kind]) - 2)
  )


@pytest.mark.parametrize('width', [3, 8])
def test_jacobian_of_layer_norm(width):
  """Xiong et al. 2020, lemma 3: its spectral norm is sqrt(d) over the norm of the centred input."""
  module, _ = filled(LayerNorm(width, use_bias=False))
  module.gain[...] = jnp.ones(width)
  x, exact = random_stream(width, seed=3)
  largest = np.linalg.svd(np.asarray(jax.jacobian(module)(5 * x)), compute_uv=False)[0]
  centred = 5 * (exact - exact.mean())
  assert largest == pytest.approx(np.sqrt(width) / np.linalg.norm(centred), rel=1e-4)
