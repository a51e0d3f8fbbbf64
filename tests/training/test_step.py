import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_steps import (
  CONFIG,
  DROPOUT,
  GRADIENT,
  ONES,
  SKIP,
  bad_batch,
  batch_of,
  check_by_finite_differences,
  compiled_init,
  compiled_logits,
  compiled_loss,
  compiled_step,
  difference,
  loss_by_hand,
  norm,
  quick_jit,
  random_params,
  run,
  same_bits,
  scaled,
  state_of,
)

import model
from training.step import (
  is_logged,
  make_evaluation_step,
  norm_per_layer,
)


def test_the_losses_of_a_fixed_run():
  """If you meant to change the computation, update these numbers."""
  _, history = run(CONFIG, compiled_init(CONFIG)(np.uint32(0)), map(batch_of, range(20)))
  losses = [float(metrics['scalars']['train/loss']) for metrics in history]
  assert [losses[0], losses[9], losses[19]] == pytest.approx([2.9574, 1.5939, 1.1406], abs=1e-3)


def test_the_initial_state():
  zero, one, again = (compiled_init(CONFIG)(np.uint32(seed)) for seed in (0, 1, 0))
  assert [int(one.step), int(one.init_seed), int(one.nonfinite_in_a_row), int(one.clipped)] == [0, 1, 0, 0]
  assert (one.step.dtype, one.init_seed.dtype, one.nonfinite_in_a_row.dtype) == (np.int32, np.uint32, np.int32)
  assert norm(one.optimizer) == 0
  assert same_bits(zero, again)
  assert not same_bits(zero.params, one.params)


def test_the_initial_values_follow_from_the_seed():
  params = quick_jit(lambda: model.init(CONFIG.model, jax.random.key(1)))()
  assert same_bits(compiled_init(CONFIG)(np.uint32(1)).params, params)


@pytest.mark.parametrize('weights', ['ones', 'some', 'fractions'])
def test_the_loss_is_the_weighted_mean(weights):
  batch = batch_of(3)
  if weights != 'some':
    batch['weights_BT'] = np.random.default_rng(0).random((8, 8), np.float32) if weights == 'fractions' else ONES
  params = random_params(CONFIG)
  loss, (scored, _) = compiled_loss(CONFIG)(params, batch)
  assert float(loss) == pytest.approx(loss_by_hand(CONFIG, params, batch), rel=1e-5)
  assert float(scored) == pytest.approx(batch['weights_BT'].sum())


def test_the_loss_without_scored_tokens_is_zero():
  batch = batch_of(0) | {'weights_BT': np.zeros((8, 8), np.float32)}
  loss, (scored, _) = compiled_loss(CONFIG)(random_params(CONFIG), batch)
  assert (loss, scored) == (0, 0)


def test_the_evaluation_step_returns_a_sum_and_a_count():
  batch, params = batch_of(3), random_params(CONFIG)
  nats, scored = quick_jit(make_evaluation_step(DROPOUT))(params, batch)  # without dropout
  assert scored == batch['weights_BT'].sum()
  assert float(nats / scored) == pytest.approx(loss_by_hand(CONFIG, params, batch), rel=1e-5)


@pytest.fixture(scope='module')
def first_step():
  """The parameters, the decrease in the first step (the clipped gradient), and its metrics."""
  state = state_of(GRADIENT)
  after, metrics = compiled_step(GRADIENT)(state, batch_of(1))
  return state.params, difference(state.params, after.params), jax.device_get(metrics)


def test_the_update_is_the_gradient_by_finite_differences(first_step):
  params, update, metrics = first_step
  size = float(metrics['scalars']['grad_norm/global'])
  gradient = scaled(update, size / norm(update))  # the update is the clipped gradient
  check_by_finite_differences(gradient, lambda params: loss_by_hand(GRADIENT, params, batch_of(1)), params)


def test_global_norms_by_hand(first_step):
  params, update, metrics = first_step
  scalars = {name: float(value) for name, value in metrics['scalars'].items()}
  assert scalars['grad_norm/global'] > 0.6  # so that it is clipped
  assert scalars['grad_norm/clipped'] == pytest.approx(0.5)
  assert scalars['update_norm/global'] == pytest.approx(norm(update), rel=1e-4)
  assert norm(update) == pytest.approx(0.5, rel=1e-4)
  assert scalars['param_norm/global'] == pytest.approx(norm(params), rel=1e-5)
  assert scalars['learning_rate'] == 1.0
  assert scalars['train/loss'] == pytest.approx(loss_by_hand(GRADIENT, params, batch_of(1)), rel=1e-5)
  assert scalars['nonfinite_in_a_row'] == 0


def test_scalars_of_a_run():
  state, history = run(CONFIG, state_of(CONFIG), map(batch_of, range(20)))
  table = {name: [float(step['scalars'][name]) for step in history] for name in history[0]['scalars']}
  rises = [1 / 4, 2 / 4, 3 / 4, 1]
  falls = [0.1 + 0.9 * (1 + math.cos(math.pi * done / 16)) / 2 for done in range(16)]
  np.testing.assert_allclose(table['learning_rate'], 2e-2 * np.array(rises + falls), rtol=1e-5)
  np.testing.assert_allclose(table['grad_norm/clipped'], np.minimum(table['grad_norm/global'], 1), rtol=1e-6)
  assert min(table['grad_norm/global']) < 1 < max(table['grad_norm/global'])
  assert (int(state.step), int(state.init_seed), int(state.nonfinite_in_a_row)) == (20, 0, 0)
  sizes = [norm(step['parameter_norms']['grad_norm']) for step in history]
  expected = [size if k in (0, 4, 9, 14, 19) else 0 for k, size in enumerate(table['grad_norm/global'])]
  np.testing.assert_allclose(sizes, expected, rtol=1e-5)


@pytest.mark.slow
def test_without_clipping_the_clipped_norm_is_the_norm():
  _, (metrics,) = run(DROPOUT, state_of(DROPOUT), [batch_of(0)])
  assert metrics['scalars']['grad_norm/clipped'] == metrics['scalars']['grad_norm/global'] > 0.5


def test_the_norm_of_each_parameter_and_layer(first_step):
  _, update, metrics = first_step
  clipping = 0.5 / metrics['scalars']['grad_norm/global']
  paths = jax.tree.leaves_with_path(metrics['parameter_norms']['grad_norm'])
  for (path, norms), leaf in zip(paths, jax.tree.leaves(update), strict=True):
    layers = leaf if path[0].key == 'blocks' else leaf[None]
    expected = [np.linalg.norm(layer.ravel()) for layer in layers]
    np.testing.assert_allclose(np.ravel(norms) * clipping, expected, rtol=1e-4, atol=1e-6, err_msg=str(path))
    assert norms.shape == ((2,) if path[0].key == 'blocks' else ())


def test_norms_of_a_half_precision_tree_are_taken_in_float32():
  tree = {'blocks': {'kernel': jnp.full((2, 64, 64), 300, jnp.float16)}, 'head': jnp.full((3,), 2, jnp.bfloat16)}
  norms = norm_per_layer({'blocks': tree['blocks'], 'head': {'kernel': tree['head']}})
  np.testing.assert_allclose(norms['blocks']['kernel'], [300 * 64] * 2)
  assert norms['head']['kernel'] == pytest.approx(12**0.5)


@pytest.mark.parametrize(('steps', 'log_every'), [(20, 5), (23, 10), (1, 0), (7, 0), (65, 0)])
def test_the_first_the_last_and_every_nth_step_is_logged(steps, log_every):
  config = CONFIG.replace({'run.steps': steps, 'run.log_every': log_every, 'optimizer.warmup_steps': 0})
  every = log_every or max(1, steps // 30)
  expected = sorted({1, steps, *range(every, steps + 1, every)})
  assert [step for step in range(1, steps + 1) if is_logged(config, step)] == expected


def test_stream_gradients_do_not_depend_on_the_batch_size():
  batch, other = batch_of(1), batch_of(2)
  padded = {name: np.concatenate([batch[name][:4], other[name][4:]]) for name in batch}
  padded['weights_BT'][4:] = 0
  twice = {name: np.concatenate([batch[name][:4], batch[name][:4]]) for name in batch}
  (_, (one,)), (_, (two,)) = (run(CONFIG, state_of(CONFIG), [b]) for b in (padded, twice))
  assert float(two['scalars']['train/loss']) == pytest.approx(float(one['scalars']['train/loss']), rel=1e-5)
  assert one['stream_gradient']['blocks'].shape == (2, 2, 3)
  for a, b in zip(jax.tree.leaves(one['stream_gradient']), jax.tree.leaves(two['stream_gradient']), strict=True):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_the_gradient_at_the_output_by_hand(first_step):
  params, _, metrics = first_step
  batch = batch_of(1)
  logits = np.asarray(compiled_logits(GRADIENT.model)(params, batch['inputs_BT']), np.float64)
  shares = np.exp(logits - logits.max(-1, keepdims=True))
  shares /= shares.sum(-1, keepdims=True)
  n = batch['weights_BT'].sum()
  g_BTV = (shares - np.eye(11)[batch['targets_BT']]) * batch['weights_BT'][..., None] / n
  g_BTD = g_BTV @ np.asarray(params['head']['kernel'], np.float64).T
  assert float(metrics['stream_gradient']['output'][0]) == pytest.approx(n * np.sum(g_BTD**2), rel=1e-4)


def test_inspection_does_not_change_training():
  off = CONFIG.replace({'inspect.level': 'off'})
  (seen, _), (unseen, history) = (run(config, state_of(config), map(batch_of, range(3))) for config in (CONFIG, off))
  for a, b in zip(jax.tree.leaves(seen), jax.tree.leaves(unseen), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  assert history[0].keys() == {'scalars'}


# --- the step as a pure function


def test_dropout_depends_on_the_step_and_the_seed():
  def loss(config, step, seed):
    _, (metrics,) = run(config, state_of(config, step=step, init_seed=seed), [batch_of(0)])
    return float(metrics['scalars']['train/loss'])

  steps_and_seeds = [(0, 0), (1, 0), (0, 1), (1, 1)]
  losses = [loss(DROPOUT, *pair) for pair in steps_and_seeds]
  assert len(set(losses)) == 4
  assert [loss(DROPOUT, *pair) for pair in steps_and_seeds] == losses
  assert len({loss(CONFIG, *pair) for pair in steps_and_seeds}) == 1  # without dropout nothing is random


def test_a_step_is_pure():
  state = state_of(CONFIG)
  copy = jax.tree.map(np.array, state)
  one, two = (compiled_step(CONFIG)(state, batch_of(0)) for _ in range(2))
  assert same_bits(one, two)
  assert same_bits(state, copy)


@pytest.mark.slow
def test_one_compilation_serves_every_step_and_seed():
  run(SKIP, state_of(SKIP), [batch_of(0), bad_batch(), batch_of(1)])
  for seed in (1, 2**32 - 1):
    run(SKIP, state_of(SKIP, init_seed=seed), [batch_of(0), batch_of(1)])
    run(CONFIG, compiled_init(CONFIG)(np.uint32(seed)), [batch_of(0), batch_of(1)])
  assert compiled_step(SKIP)._cache_size() == compiled_step(CONFIG)._cache_size() == 1
  assert compiled_init(CONFIG)._cache_size() == 1
