"""What the blocks see, against the same numbers by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import distance, filled, model_params, quick_jit, random_stream, tiny

from model.attention_kernels import attention_statistics
from model.block import Block
from model.observation import relative_residual
from model.transformer import apply

SWITCHES = {
  **{name: {'norm_placement': name} for name in ('pre', 'post', 'sandwich', 'res_post', 'deepnorm', 'none')},
  'scaled': {'attention_residual': 0.5, 'feed_forward_residual': 0.25},
  'parallel': {'parallel': True, 'attention_residual': 0.5, 'feed_forward_residual': 0.5},
  'rezero': {'rezero': True, 'norm': 'layer'},
}


def observed(config, x):
  """A block's stats and its parameters in float64."""
  block, params = filled(Block(config))
  return quick_jit(lambda x: block(x, jnp.zeros((2, 3)), observe=True)[1])(x), params


@pytest.mark.parametrize('name', SWITCHES)
def test_what_a_branch_adds_by_hand(name):
  config = tiny(**SWITCHES[name])
  x, exact = random_stream(3, 5, 8)
  stats, params = observed(config, x)
  for sublayer, (before, added, after) in zip(
    ('attention', 'feed_forward'), reference.sublayers(params, exact, config), strict=True
  ):
    found = {key: float(value[sublayer]) for key, value in stats['mean'].items() if isinstance(value, dict)}
    assert found == pytest.approx(
      {
        'stream_square': (after**2).mean(),
        'input_square': (before**2).mean(),
        'branch_square': (added**2).mean(),
        'branch_inner': (before * added).mean(),
        'relative_residual': np.mean([residual_by_hand(sequence) for sequence in after]),
      },
      rel=1e-4,
    )


def residual_by_hand(x_TD):
  """Dong et al. 2021: norms by numpy, which knows the 1-norm and the infinity-norm of a matrix."""

  def size(a):
    return np.sqrt(np.linalg.norm(a, 1) * np.linalg.norm(a, np.inf))

  return size(x_TD - np.ones((len(x_TD), 1)) * x_TD.mean(0)) / size(x_TD)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 7), st.integers(1, 6), st.integers(0, 99))
def test_the_relative_residual_by_hand(positions, width, seed):
  x = np.random.default_rng(seed).normal(size=(positions, width)).astype(np.float32)
  assert float(relative_residual(jnp.asarray(x))) == pytest.approx(residual_by_hand(x.astype(float)), abs=1e-6)


def test_positions_that_are_all_the_same_have_no_residual():
  assert float(relative_residual(jnp.ones((4, 3)))) == 0
  assert float(relative_residual(jnp.zeros((4, 3)))) == 0


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('shape', [(2, 1, 2, 4), (2, 5, 3, 4), (1, 64, 1, 2), (1, 70, 2, 4)])
def test_entropy_and_largest_logit_by_hand(shape, causal):
  rng = np.random.default_rng(0)
  q, k = 2 * rng.normal(size=(2, *shape))
  entropy, largest = quick_jit(lambda q, k: attention_statistics(q, k, causal))(np.float32(q), np.float32(k))
  expected = reference.entropy_and_largest(q, k, causal)
  np.testing.assert_allclose(entropy, expected[0], rtol=1e-5, atol=1e-7)
  np.testing.assert_allclose(largest, expected[1], rtol=1e-5)


def test_entropy_where_it_is_known():
  q = jnp.zeros((1, 4, 1, 2))
  entropy, largest = attention_statistics(q, q, causal=True)  # uniform over 1, 2, 3 and 4 keys
  np.testing.assert_allclose(entropy[0], np.log([1, 2, 3, 4]).mean(), rtol=1e-6)
  assert largest[0] == 0
  entropy, _ = attention_statistics(q + 300, q + 300 * jnp.arange(4)[:, None, None], causal=True)  # one key takes all
  assert entropy[0] == 0


@pytest.mark.parametrize(
  'changes', [{}, {'qk_norm': True}, {'num_heads': 4, 'num_kv_heads': 2, 'causal': False}, {'norm_placement': 'post'}]
)
def test_attention_is_seen_as_it_reads(changes):
  config = tiny(**changes)
  x, exact = random_stream(2, 5, 8)
  stats, params = observed(config, x)
  into = exact if config.norm_placement == 'post' else reference.norm(params['attention_norm'], exact, 'rms')
  q, k, _ = reference.queries_keys_values(params['attention'], into, config)
  entropy, largest = reference.entropy_and_largest(q, k, config.causal)
  np.testing.assert_allclose(stats['mean']['attention_entropy'], entropy, rtol=1e-5)
  np.testing.assert_allclose(stats['max']['largest_logit'], largest, rtol=1e-4)


@pytest.mark.parametrize('name', ['relu', 'relu2', 'reglu'])
def test_units_that_are_silent_everywhere(name):
  config = tiny(feed_forward=name, use_bias=True, norm_placement='none', d_ff=6)
  block, _ = filled(Block(config))
  ff = block.feed_forward
  project = ff.up if ff.gate is None else ff.gate
  project.bias[...] = jnp.array([-50.0, 50.0, -50.0, 0.0, 0.0, 50.0])
  project.kernel[...] = project.kernel[...].at[:, 3].set(0)  # exactly 0 is silent too
  x, _ = random_stream(2, 5, 8)
  _, stats = block(x, jnp.zeros((2, 3)), observe=True)
  np.testing.assert_array_equal(stats['max']['active_units'], [0, 1, 0, 0, 1, 1])


@pytest.mark.parametrize('name', ['gelu', 'silu', 'glu', 'swiglu', 'geglu', 'bilinear'])
def test_no_unit_of_the_others_is_silent(name):
  stats, _ = observed(tiny(feed_forward=name), random_stream(2, 5, 8)[0])
  assert 'active_units' not in stats['max']


@pytest.mark.parametrize('changes', [{}, {'remat': True}, {'dtype': 'bfloat16'}, {'parallel': True}])
def test_looking_changes_nothing(changes):
  config = tiny(feed_forward='relu', **changes)
  params, tokens = model_params(config), jnp.array([[3, 1, 4], [1, 5, 9]])
  plain, seeing = (
    quick_jit(lambda params, observe=observe: apply(config, params, tokens, observe=observe))(params)
    for observe in (False, True)
  )
  assert distance(seeing[0], plain[0]) < (1e-2 if config.dtype == 'bfloat16' else 1e-6)
  assert distance(seeing[1]['mean']['stream_square'], plain[1]['mean']['stream_square']) < 1e-3
  assert {leaf.dtype for leaf in jax.tree.leaves(seeing[1])} == {jnp.dtype('float32')}
