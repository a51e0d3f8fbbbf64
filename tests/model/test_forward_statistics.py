"""Forward statistics against the NumPy reference."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import distance, filled, model_params, quick_jit, random_stream, tiny

from model.activations import ACTIVATIONS
from model.block import Block
from model.forward_statistics import attention_statistics, relative_residual
from model.transformer import apply

SWITCHES = {
  **{name: {'connection': name} for name in ('pre', 'post', 'sandwich', 'res_post', 'deepnorm', 'none')},
  'scaled': {'attention_residual': 0.5, 'feed_forward_residual': 0.25},
  'parallel': {'parallel': True, 'attention_residual': 0.5, 'feed_forward_residual': 0.5},
  'rezero': {'rezero': True, 'norm': 'layer'},
}


def block_statistics(config, x):
  """The forward statistics of a block, and its parameters in float64."""
  block, params = filled(Block(config))
  return quick_jit(lambda x: block(x, jnp.zeros((2, 3)), full_stats=True)[1])(x), params


@pytest.mark.parametrize('name', SWITCHES)
def test_branch_statistics_match_the_reference(name):
  config = tiny(**SWITCHES[name])
  x, exact = random_stream(3, 5, 8)
  stats, params = block_statistics(config, x)
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
        'relative_residual': np.mean([reference_residual(sequence) for sequence in after]),
      },
      rel=1e-4,
    )


def reference_residual(x_TD):
  """Dong et al. 2021, by NumPy's 1-norm and infinity-norm of a matrix."""

  def size(a):
    return np.sqrt(np.linalg.norm(a, 1) * np.linalg.norm(a, np.inf))

  return size(x_TD - np.ones((len(x_TD), 1)) * x_TD.mean(0)) / size(x_TD)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 7), st.integers(1, 6), st.integers(0, 99))
def test_relative_residual_matches_the_reference(positions, width, seed):
  x = np.random.default_rng(seed).normal(size=(positions, width)).astype(np.float32)
  assert float(relative_residual(jnp.asarray(x))) == pytest.approx(reference_residual(x.astype(float)), abs=1e-6)


def test_identical_positions_have_no_relative_residual():
  assert float(relative_residual(jnp.ones((4, 3)))) == 0
  assert float(relative_residual(jnp.zeros((4, 3)))) == 0


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('shape', [(2, 1, 2, 4), (2, 5, 3, 4), (1, 64, 1, 2), (1, 70, 2, 4)])
def test_attention_statistics_match_the_reference(shape, causal):
  rng = np.random.default_rng(0)
  q, k = 2 * rng.normal(size=(2, *shape))
  stats = quick_jit(lambda q, k: attention_statistics(q, k, causal))(np.float32(q), np.float32(k))
  entropy, largest = reference.entropy_and_largest(q, k, causal)
  np.testing.assert_allclose(stats['mean']['attention_entropy'], entropy, rtol=1e-5, atol=1e-7)
  np.testing.assert_allclose(stats['max']['largest_logit'], largest, rtol=1e-5)


def test_entropy_of_uniform_and_one_hot_weights():
  q = jnp.zeros((1, 4, 1, 2))
  uniform = attention_statistics(q, q, causal=True)  # over 1, 2, 3 and 4 keys
  np.testing.assert_allclose(uniform['mean']['attention_entropy'], [np.log([1, 2, 3, 4]).mean()], rtol=1e-6)
  assert uniform['max']['largest_logit'] == 0
  one_hot = attention_statistics(q + 300, q + 300 * jnp.arange(4)[:, None, None], causal=True)
  assert one_hot['mean']['attention_entropy'] == 0


@pytest.mark.parametrize(
  'changes', [{}, {'qk_norm': True}, {'num_heads': 4, 'num_kv_heads': 2, 'causal': False}, {'connection': 'post'}]
)
def test_attention_statistics_of_a_block_match_the_reference(changes):
  config = tiny(**changes)
  x, exact = random_stream(2, 5, 8)
  stats, params = block_statistics(config, x)
  into = exact if config.connection == 'post' else reference.norm(params['attention_norm'], exact, 'rms')
  q, k, _ = reference.queries_keys_values(params['attention'], into, config)
  entropy, largest = reference.entropy_and_largest(q, k, config.causal)
  np.testing.assert_allclose(stats['mean']['attention_entropy'], entropy, rtol=1e-5)
  np.testing.assert_allclose(stats['max']['largest_logit'], largest, rtol=1e-4)


@pytest.mark.parametrize('name', ['relu', *(pytest.param(name, marks=pytest.mark.slow) for name in ('relu2', 'reglu'))])
def test_dead_units(name):
  config = tiny(feed_forward=name, use_bias=True, connection='none', d_ff=6)
  block, _ = filled(Block(config))
  ff = block.feed_forward
  project = ff.up if ff.gate is None else ff.gate
  project.bias[...] = jnp.array([-50.0, 50.0, -50.0, 0.0, 0.0, 50.0])
  project.kernel[...] = project.kernel[...].at[:, 3].set(0)  # exactly 0 is dead too
  x, _ = random_stream(2, 5, 8)
  _, stats = block(x, jnp.zeros((2, 3)), full_stats=True)
  np.testing.assert_array_equal(stats['max']['active_units'], [0, 1, 0, 0, 1, 1])


@pytest.mark.parametrize('name', sorted(set(ACTIVATIONS) - {'relu', 'relu2', 'reglu'}))
def test_no_unit_is_dead_without_a_rectified_activation(name):
  stats, _ = block_statistics(tiny(feed_forward=name), random_stream(2, 5, 8)[0])
  assert 'active_units' not in stats['max']


@pytest.mark.parametrize('changes', [{}, {'remat': True}, {'dtype': 'bfloat16'}, {'parallel': True}])
def test_full_statistics_do_not_change_the_logits(changes):
  config = tiny(feed_forward='relu', **changes)
  params, tokens = model_params(config), jnp.array([[3, 1, 4], [1, 5, 9]])
  (logits, stats), (logits_again, full_stats) = (
    quick_jit(lambda params, full=full: apply(config, params, tokens, full_stats=full))(params)
    for full in (False, True)
  )
  assert distance(logits_again, logits) < (1e-2 if config.dtype == 'bfloat16' else 1e-6)
  assert distance(full_stats['mean']['stream_square'], stats['mean']['stream_square']) < 1e-3
  assert {leaf.dtype for leaf in jax.tree.leaves(full_stats)} == {jnp.dtype('float32')}
