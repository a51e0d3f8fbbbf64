import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import float64, model_params, quick, quick_jit, random_stream, tiny, with_zero_branches

from model.activations import ACTIVATIONS
from model.residual import fork
from model.transformer import apply, zero_taps

LENGTH = 3
TOKENS = jnp.array([[3, 1, 4], [1, 5, 9]])
WEIGHTS_BTV = np.random.default_rng(7).normal(size=(2, LENGTH, 11)).astype(np.float32)

# Each norm placement, and each option that changes how the skip path and the branch combine.
CONFIGS = {
  **{name: {'connection': name} for name in ('pre', 'post', 'sandwich', 'res_post', 'deepnorm', 'none')},
  'pre-half': {'attention_residual': 0.5, 'feed_forward_residual': 0.9},
  'pre-zero': {'attention_residual': 0.0, 'feed_forward_residual': 0.0},
  'post-zero': {'connection': 'post', 'attention_residual': 1.0, 'feed_forward_residual': 0.0},
  'sandwich-half': {'connection': 'sandwich', 'attention_residual': 0.5, 'norm': 'layer', 'embedding_norm': True},
  'none-rezero': {'connection': 'none', 'rezero': True, 'feed_forward_residual': 0.5},
  'parallel': {'parallel': True},
  'parallel-half': {'parallel': True, 'attention_residual': 0.5, 'feed_forward_residual': 0.5},
  'parallel-zero': {'parallel': True, 'attention_residual': 0.0, 'feed_forward_residual': 0.0},
  **{f'pre-{name}': {'feed_forward': name, 'num_layers': 1} for name in ACTIVATIONS if name != 'swiglu'},
  'post-relu-unrolled': {'connection': 'post', 'feed_forward': 'relu', 'unroll': 2},
  'sandwich-geglu-remat': {'connection': 'sandwich', 'feed_forward': 'geglu', 'remat': True},
}


def position_taps(config):
  """Taps that measure at each position."""
  return zero_taps(config, LENGTH)


def measured(config, params, taps, weight=1.0):
  """The gradient of a random linear function of the logits with respect to the taps."""

  def loss(taps):
    return jnp.sum(weight * WEIGHTS_BTV * apply(config, params, TOKENS, taps)[0])

  return jax.grad(loss)(taps)


def perturbed(config, params, step=1e-5):
  """The gradients on each path of the NumPy model, by central differences in every coordinate, float64.

  Each nudge has its own copy of the two sequences, and all copies run as one batch.

  Returns:
    (layer, sublayer, path, B, T, D), and that of the stack's output, (B, T, D).
  """
  size, numbers = LENGTH * config.d_model, (config.num_layers * 4 + 1) * LENGTH * config.d_model
  nudges = step * np.concatenate([np.eye(numbers), -np.eye(numbers)])  # (nudge, number)
  nudges = np.repeat(nudges, 2, 0).reshape(4 * numbers, -1, LENGTH, config.d_model).swapaxes(0, 1)
  blocks = nudges[:-1].reshape(config.num_layers, 2, 2, 4 * numbers, LENGTH, config.d_model)
  tokens = np.tile(TOKENS, (2 * numbers, 1))
  logits = reference.transformer(float64(params), tokens, config, blocks, nudges[-1])
  above, below = np.einsum('enbtv,btv->enb', logits.reshape(2, numbers, 2, LENGTH, -1), WEIGHTS_BTV)
  gradients = ((above - below) / (2 * step)).T.reshape(2, -1, size)  # (B, point and path, T D)
  gradients = gradients.swapaxes(0, 1).reshape(-1, 2, LENGTH, config.d_model)
  return gradients[:-1].reshape(config.num_layers, 2, 2, *gradients.shape[1:]), gradients[-1]


@pytest.mark.parametrize(
  'name', quick(CONFIGS, ('pre', 'post', 'pre-half', 'parallel-half', 'none-rezero', 'pre-relu'))
)
def test_taps_against_brute_force_perturbation(name):
  config = tiny(d_model=4, d_ff=6, **CONFIGS[name])
  params = model_params(config)
  taps = quick_jit(functools.partial(measured, config))(params, position_taps(config))
  blocks, output = perturbed(config, params)
  skip, branch = blocks[:, :, 0], blocks[:, :, 1]  # (layer, sublayer, B, T, D)
  expected = np.stack([(skip**2).sum((2, 4)), (branch**2).sum((2, 4)), (skip * branch).sum((2, 4))], -1)
  bound = 1e-4 * np.sqrt(expected[..., 0] * expected[..., 1])
  np.testing.assert_allclose(taps['blocks'][..., :2], expected[..., :2], rtol=1e-4, atol=1e-12)
  assert (np.abs(taps['blocks'][..., 2] - expected[..., 2]) <= bound + 1e-12).all()
  np.testing.assert_allclose(taps['output'][:, 0], (output**2).sum((0, 2)), rtol=1e-4)
  np.testing.assert_array_equal(taps['output'][:, 1:], 0)
  for s, scale in enumerate((config.attention_residual, config.feed_forward_residual)):
    nothing = scale == 0 and not (config.parallel and s == 0)  # there the other branch depends on the skip path
    assert (np.asarray(taps['blocks'][:, s, :, 0]) == 0).all() == nothing
    assert (np.asarray(taps['blocks'][:, s, :, 2]) == 0).all() == nothing


@functools.cache
def baseline_split():
  config = tiny()
  params = model_params(config)
  return config, params, quick_jit(functools.partial(measured, config))(params, position_taps(config))


def assert_same_split(taps, expected):
  for name in ('blocks', 'output'):
    np.testing.assert_allclose(taps[name], expected[name], rtol=1e-4, atol=1e-9)


def summed(taps):
  return jax.tree.map(lambda tap: tap.sum(-2), taps)


def test_taps_without_positions_sum_over_them():
  config, params, expected = baseline_split()
  taps = quick_jit(functools.partial(measured, config))(params, zero_taps(config))
  assert (taps['blocks'].shape, taps['output'].shape) == ((2, 2, 3), (3,))
  assert_same_split(taps, summed(expected))


@pytest.mark.parametrize('changes', [{'remat': True}, {'remat': True, 'unroll': 2}], ids=str)
def test_taps_agree_under_remat_and_unrolling(changes):
  _, params, expected = baseline_split()
  assert_same_split(quick_jit(functools.partial(measured, tiny(**changes)))(params, position_taps(tiny())), expected)


def test_taps_under_vmap():
  config, params, expected = baseline_split()
  taps = jax.tree.map(lambda tap: jnp.stack([tap, tap]), position_taps(config))
  mapped = quick_jit(jax.vmap(functools.partial(measured, config, params)))(taps, jnp.array([1.0, 3.0]))
  for index, factor in enumerate((1, 9)):
    assert_same_split(jax.tree.map(lambda tap: tap[index] / factor, mapped), expected)  # noqa: B023


@pytest.mark.parametrize(('placement', 'scales'), [('pre', (1.0, 1.0)), ('pre', (0.5, 0.9)), ('none', (1.0, 0.5))])
def test_the_skip_gradient_is_the_scaled_total_at_the_next_sublayer(placement, scales):
  config = tiny(connection=placement, attention_residual=scales[0], feed_forward_residual=scales[1])
  params = model_params(config)
  taps = float64(quick_jit(functools.partial(measured, config))(params, zero_taps(config)))
  sublayers = taps['blocks'].reshape(-1, 3)
  total = np.append(sublayers @ [1, 1, 2], taps['output'][0])  # |skip + branch|^2 of each, and of the output
  np.testing.assert_allclose(sublayers[:, 0], np.tile(scales, 2) ** 2 * total[1:], rtol=1e-4)


@pytest.mark.parametrize(
  ('placement', 'a'),
  [('pre', 1.0), ('pre', 0.5), ('pre', 0.0), ('pre', 0.9), ('sandwich', 0.5), ('none', 0.5)],
)
def test_with_zero_branches_the_residual_scale_scales_the_gradient(placement, a):
  """He et al. 2016, section 3: a^(2L) over the 2 L sublayers of L blocks."""
  config = tiny(connection=placement, attention_residual=a, feed_forward_residual=a, num_layers=6)
  params = with_zero_branches(model_params(config))
  taps = quick_jit(functools.partial(measured, config))(params, zero_taps(config))
  np.testing.assert_array_equal(taps['blocks'][..., 1:], 0)
  squares = np.append(taps['blocks'][..., 0], taps['output'][0])  # at the input of each sublayer and at the output
  assert squares[-1] > 0
  if a == 0.9:
    np.testing.assert_allclose(np.sqrt(squares[0] / squares[-1]), 0.9**12, rtol=1e-6)
  else:
    np.testing.assert_array_equal(squares, squares[-1] * a ** (2 * np.arange(12, -1, -1)))


def test_fork_by_itself():
  x, _ = random_stream(2, 5, 8)
  (skip, branch), pull = jax.vjp(fork, x, jnp.full(3, jnp.nan))  # the values of a tap are not read
  np.testing.assert_array_equal(skip, x)
  np.testing.assert_array_equal(branch, x)
  (g, exact_g), (h, exact_h) = random_stream(2, 5, 8, seed=1), random_stream(2, 5, 8, seed=2)
  to_x, to_tap = pull((g, h))
  np.testing.assert_array_equal(to_x, g + h)
  np.testing.assert_allclose(to_tap, [(exact_g**2).sum(), (exact_h**2).sum(), (exact_g * exact_h).sum()], rtol=1e-5)
  by_position = jax.vjp(fork, x, jnp.zeros((5, 3)))[1]((g, h))[1]
  np.testing.assert_allclose(by_position[:, 2], (exact_g * exact_h).sum((0, 2)), rtol=1e-4)


def test_fork_measures_bfloat16_gradients_in_float32():
  x = random_stream(4, 16, 64)[0].astype(jnp.bfloat16)
  to_x, to_tap = jax.vjp(fork, x, jnp.zeros(3))[1]((x, x))
  assert (to_x.dtype, to_tap.dtype) == (jnp.bfloat16, jnp.float32)
  np.testing.assert_allclose(to_tap, (np.asarray(x, np.float64) ** 2).sum(), rtol=1e-5)
