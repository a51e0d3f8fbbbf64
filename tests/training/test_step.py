import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import model
from model.config import ModelConfig
from model.transformer import param_shapes
from training.config import Config, DataConfig, OptimizerConfig, RunConfig
from training.optimizer import make_optimizer
from training.step import (
  State,
  has_diverged,
  init_state,
  is_logged,
  make_evaluation_step,
  make_train_step,
  norm_by_layer,
  weighted_loss,
)

CONFIG = Config(
  model=ModelConfig(vocab_size=11, num_layers=2, d_model=8, num_heads=2),
  data=DataConfig(task='copy', sequence_length=8),
  optimizer=OptimizerConfig(learning_rate=2e-2, warmup_steps=4),
  run=RunConfig(steps=20, batch_size=8, log_every=5),
)
ONES = np.ones((8, 8), np.float32)
QUICK = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)
# The update is the clipped gradient itself, and nothing stands between the stream and the head.
GRADIENT = CONFIG.replace({
  'optimizer.name': 'sgd', 'optimizer.beta1': 0.0, 'optimizer.learning_rate': 1.0, 'optimizer.schedule': 'constant',
  'optimizer.warmup_steps': 0, 'optimizer.weight_decay': 0.0, 'optimizer.clip': 0.5, 'model.norm_placement': 'none',
})  # fmt: skip
SKIP = CONFIG.replace({'run.on_nonfinite': 'skip', 'optimizer.name': 'sgd', 'inspect.level': 'off'})
DROPOUT = CONFIG.replace({
  'model.dropout': 0.3, 'optimizer.name': 'sgd', 'optimizer.clip': 0.0, 'inspect.level': 'off'
})  # fmt: skip


@functools.cache
def compiled_step(config: Config):
  return quick_jit(make_train_step(config))


@functools.cache
def compiled_init(config: Config):
  return quick_jit(functools.partial(init_state, config))


@functools.cache
def compiled_loss(config: Config):
  return quick_jit(lambda params, batch: weighted_loss(config, params, batch, None))


@functools.cache
def compiled_logits(config: ModelConfig):
  return quick_jit(lambda params, tokens: model.apply(config, params, tokens)[0])


def batch_of(number: int) -> dict[str, np.ndarray]:
  """Tokens that a model can learn to predict, from arithmetic alone; here and there a target does not count."""
  row, position = np.indices((8, 9))
  tokens = ((3 + number % 2) * position + 5 * row + number) % 11
  weights = ((row + position + number) % 5 > 0)[:, 1:]
  return {
    'inputs_BT': tokens[:, :-1].astype(np.int32),
    'targets_BT': tokens[:, 1:].astype(np.int32),
    'weights_BT': weights.astype(np.float32),
  }


def random_params(config: Config, seed: int = 0):
  """Parameters of ordinary size that no initialisation chose."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    noise = rng.normal(size=leaf.shape)
    if path[-1].key == 'kernel':
      noise = noise / leaf.shape[-2] ** 0.5
    return jnp.asarray(1 + 0.1 * noise if path[-1].key == 'gain' else noise, jnp.float32)

  return jax.tree.map_with_path(draw, param_shapes(config.model))


def state_of(config: Config, params=None, step: int = 0, init_seed: int = 0) -> State:
  params = random_params(config) if params is None else params
  optimizer = make_optimizer(config.optimizer, config.run.steps).init(params)
  return State(jnp.int32(step), params, optimizer, jnp.uint32(init_seed), jnp.int32(0), jnp.int32(0))


def run(config: Config, state: State, batches) -> tuple[State, list[dict]]:
  history = []
  for batch in batches:
    state, metrics = compiled_step(config)(state, batch)
    history.append(metrics)
  return state, history


def same_bits(one, other) -> bool:
  pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def norm(tree) -> float:
  return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree))))


def difference(one, other):
  return jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), one, other)


def scaled(tree, factor: float):
  return jax.tree.map(lambda leaf: factor * leaf, tree)


def cross_entropy(logits_BTV, batch) -> np.ndarray:
  """Nats of each target, in float64."""
  logits = np.asarray(logits_BTV, np.float64)
  largest = logits.max(-1, keepdims=True)
  log_total = np.log(np.exp(logits - largest).sum(-1)) + largest[..., 0]
  return log_total - np.take_along_axis(logits, np.asarray(batch['targets_BT'])[..., None], -1)[..., 0]


def loss_by_hand(config: Config, params, batch) -> float:
  nats = cross_entropy(compiled_logits(config.model)(params, batch['inputs_BT']), batch)
  return float((nats * batch['weights_BT']).sum() / batch['weights_BT'].sum())


def test_the_losses_of_a_fixed_run():
  """If you meant to change what a run computes, update these."""
  _, history = run(CONFIG, compiled_init(CONFIG)(np.uint32(0)), map(batch_of, range(20)))
  losses = [float(metrics['scalars']['train/loss']) for metrics in history]
  assert [losses[0], losses[9], losses[19]] == pytest.approx([2.9574, 1.5939, 1.1406], abs=1e-3)


def test_a_state_starts_at_zero():
  zero, one, again = (compiled_init(CONFIG)(np.uint32(seed)) for seed in (0, 1, 0))
  assert [int(one.step), int(one.init_seed), int(one.nonfinite_in_a_row), int(one.clipped)] == [0, 1, 0, 0]
  assert (one.step.dtype, one.init_seed.dtype, one.nonfinite_in_a_row.dtype) == (np.int32, np.uint32, np.int32)
  assert norm(one.optimizer) == 0
  assert same_bits(zero, again)
  assert not same_bits(zero.params, one.params)


def test_the_initial_values_are_those_of_the_seed():
  params = quick_jit(lambda: model.init(CONFIG.model, jax.random.key(1)))()
  assert same_bits(compiled_init(CONFIG)(np.uint32(1)).params, params)


@pytest.mark.parametrize('weights', ['ones', 'some', 'fractions'])
def test_the_loss_is_the_mean_over_what_counts(weights):
  batch = batch_of(3)
  if weights != 'some':
    batch['weights_BT'] = np.random.default_rng(0).random((8, 8), np.float32) if weights == 'fractions' else ONES
  params = random_params(CONFIG)
  loss, (scored, _) = compiled_loss(CONFIG)(params, batch)
  assert float(loss) == pytest.approx(loss_by_hand(CONFIG, params, batch), rel=1e-5)
  assert float(scored) == pytest.approx(batch['weights_BT'].sum())


def test_nothing_that_counts_is_no_loss():
  batch = batch_of(0) | {'weights_BT': np.zeros((8, 8), np.float32)}
  loss, (scored, _) = compiled_loss(CONFIG)(random_params(CONFIG), batch)
  assert (loss, scored) == (0, 0)


def test_a_score_is_a_sum_and_a_count():
  batch, params = batch_of(3), random_params(CONFIG)
  nats, scored = quick_jit(make_evaluation_step(DROPOUT))(params, batch)  # drops nothing
  assert scored == batch['weights_BT'].sum()
  assert float(nats / scored) == pytest.approx(loss_by_hand(CONFIG, params, batch), rel=1e-5)


@pytest.fixture(scope='module')
def first_step():
  """The parameters, what the step took from them (the clipped gradient), and its metrics as numbers."""
  state = state_of(GRADIENT)
  after, metrics = compiled_step(GRADIENT)(state, batch_of(1))
  return state.params, difference(state.params, after.params), jax.device_get(metrics)


def test_the_update_is_the_gradient_by_finite_differences(first_step):
  params, update, metrics = first_step
  size = float(metrics['scalars']['grad_norm/global'])
  rng = np.random.default_rng(0)
  along_it = scaled(update, 1 / norm(update))
  others = [jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), update) for _ in range(3)]
  for direction in (along_it, *others):
    unit = scaled(direction, 1 / norm(direction))
    ahead, behind = (difference(params, scaled(unit, step)) for step in (-0.005, 0.005))
    slope = (loss_by_hand(GRADIENT, ahead, batch_of(1)) - loss_by_hand(GRADIENT, behind, batch_of(1))) / 0.01
    cosine = sum(np.sum(g * u) for g, u in zip(jax.tree.leaves(along_it), jax.tree.leaves(unit), strict=True))
    assert slope == pytest.approx(size * cosine, abs=2e-3 * size)


def test_norms_are_those_of_what_happened(first_step):
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


def test_numbers_of_a_run():
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


def test_without_clipping_the_norm_is_what_it_was():
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
  norms = norm_by_layer({'blocks': tree['blocks'], 'head': {'kernel': tree['head']}})
  np.testing.assert_allclose(norms['blocks']['kernel'], [300 * 64] * 2)
  assert norms['head']['kernel'] == pytest.approx(12**0.5)


@pytest.mark.parametrize(('steps', 'log_every'), [(20, 5), (23, 10), (1, 0), (7, 0), (65, 0)])
def test_the_first_the_last_and_every_so_manieth_step_is_logged(steps, log_every):
  config = CONFIG.replace({'run.steps': steps, 'run.log_every': log_every, 'optimizer.warmup_steps': 0})
  every = log_every or max(1, steps // 30)
  expected = sorted({1, steps, *range(every, steps + 1, every)})
  assert [step for step in range(1, steps + 1) if is_logged(config, step)] == expected


def test_stream_gradients_do_not_depend_on_the_size_of_the_batch():
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


def test_what_is_inspected_changes_nothing():
  off = CONFIG.replace({'inspect.level': 'off'})
  (seen, _), (unseen, history) = (run(config, state_of(config), map(batch_of, range(3))) for config in (CONFIG, off))
  for a, b in zip(jax.tree.leaves(seen), jax.tree.leaves(unseen), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  assert history[0].keys() == {'scalars'}


# --- steps that are not finite


def bad_batch() -> dict[str, np.ndarray]:
  batch = batch_of(7)
  batch['weights_BT'][2, 3] = np.nan
  return batch


@pytest.mark.parametrize('config', [CONFIG, SKIP], ids=['stop', 'skip'])
def test_a_bad_step_keeps_everything_and_is_counted(config):
  before, _ = run(config, state_of(config), map(batch_of, range(3)))
  after, (metrics,) = run(config, before, [bad_batch()])
  assert same_bits(after.params, before.params)
  assert same_bits(after.optimizer, before.optimizer)
  assert (int(after.step), int(after.nonfinite_in_a_row)) == (4, 1)
  assert metrics['scalars']['nonfinite_in_a_row'] == 1
  assert np.isnan(metrics['scalars']['train/loss'])
  assert np.isnan(metrics['scalars']['grad_norm/clipped'])
  assert float(metrics['scalars']['learning_rate']) == pytest.approx(2e-2)  # of the 4th update, whenever it comes


def test_where_a_run_diverges_each_parameter_has_its_norm():
  _, history = run(CONFIG, state_of(CONFIG), [batch_of(0), bad_batch()])  # the second step is not a logged one
  assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(history[1]['parameter_norms']['grad_norm']))


def test_stop_never_moves_again():
  stopped, _ = run(CONFIG, state_of(CONFIG), [batch_of(0), bad_batch()])
  later, history = run(CONFIG, stopped, map(batch_of, range(12)))
  assert same_bits((later.params, later.optimizer), (stopped.params, stopped.optimizer))
  assert [int(metrics['scalars']['nonfinite_in_a_row']) for metrics in history] == list(range(2, 14))
  assert int(later.step) == 14
  assert max(float(metrics['scalars']['grad_norm/global']) for metrics in history) > CONFIG.optimizer.clip
  assert int(later.clipped) == int(stopped.clipped)  # what is not applied is not clipped


def test_skip_goes_on_as_if_nothing_had_been():
  batches = [batch_of(0), bad_batch(), bad_batch(), batch_of(1), bad_batch(), batch_of(2)]
  skipped, history = run(SKIP, state_of(SKIP), batches)
  smooth, _ = run(SKIP, state_of(SKIP), map(batch_of, range(3)))
  assert [int(metrics['scalars']['nonfinite_in_a_row']) for metrics in history] == [0, 1, 2, 0, 1, 0]
  rates = [float(metrics['scalars']['learning_rate']) for metrics in history]  # of the update that is made, or dropped
  assert rates == pytest.approx([2e-2 * rise for rise in (1 / 4, 2 / 4, 2 / 4, 2 / 4, 3 / 4, 3 / 4)])
  assert same_bits((skipped.params, skipped.optimizer), (smooth.params, smooth.optimizer))
  assert (int(skipped.step), int(smooth.step)) == (6, 3)


def test_skip_gives_up_after_ten_in_a_row():
  start = state_of(SKIP)
  nine, _ = run(SKIP, start, [bad_batch()] * 9)
  moved, _ = run(SKIP, nine, [batch_of(0)])
  assert not has_diverged(SKIP, nine.nonfinite_in_a_row)
  assert not same_bits(moved.params, start.params)
  ten, _ = run(SKIP, nine, [bad_batch()])
  later, _ = run(SKIP, ten, [batch_of(0)])
  assert has_diverged(SKIP, ten.nonfinite_in_a_row)
  assert same_bits((later.params, later.optimizer), (start.params, start.optimizer))
  assert int(later.nonfinite_in_a_row) == 11


@pytest.mark.parametrize('harm', ['a parameter is NaN', 'the gradient alone overflows'])
def test_whatever_is_not_finite_counts(harm):
  state = state_of(CONFIG)
  head = state.params['head']['kernel']
  planted = head.at[0, 0].set(jnp.nan) if 'NaN' in harm else head * 1e25
  state = dataclasses.replace(state, params=state.params | {'head': {'kernel': planted}})
  after, (metrics,) = run(CONFIG, state, [batch_of(0)])
  assert math.isfinite(metrics['scalars']['train/loss']) == (harm == 'the gradient alone overflows')
  assert not math.isfinite(metrics['scalars']['grad_norm/global'])
  assert same_bits((after.params, after.optimizer), (state.params, state.optimizer))
  assert int(after.nonfinite_in_a_row) == 1


# --- a step as a function


def test_dropout_depends_on_the_step_and_the_seed():
  def loss(config, step, seed):
    _, (metrics,) = run(config, state_of(config, step=step, init_seed=seed), [batch_of(0)])
    return float(metrics['scalars']['train/loss'])

  places = [(0, 0), (1, 0), (0, 1), (1, 1)]
  losses = [loss(DROPOUT, *place) for place in places]
  assert len(set(losses)) == 4
  assert [loss(DROPOUT, *place) for place in places] == losses
  assert len({loss(CONFIG, *place) for place in places}) == 1  # without dropout there is nothing to draw


def test_a_step_is_pure():
  state = state_of(CONFIG)
  copy = jax.tree.map(np.array, state)
  one, two = (compiled_step(CONFIG)(state, batch_of(0)) for _ in range(2))
  assert same_bits(one, two)
  assert same_bits(state, copy)


def test_one_compilation_serves_every_step_and_seed():
  run(SKIP, state_of(SKIP), [batch_of(0), bad_batch(), batch_of(1)])
  for seed in (1, 2**32 - 1):
    run(SKIP, state_of(SKIP, init_seed=seed), [batch_of(0), batch_of(1)])
    run(CONFIG, compiled_init(CONFIG)(np.uint32(seed)), [batch_of(0), batch_of(1)])
  assert compiled_step(SKIP)._cache_size() == compiled_step(CONFIG)._cache_size() == 1
  assert compiled_init(CONFIG)._cache_size() == 1


def test_an_update_too_large_for_a_float_never_reaches_the_parameters():
  config = CONFIG.replace({'optimizer.learning_rate': 3e38, 'optimizer.warmup_steps': 0, 'optimizer.weight_decay': 1e3})
  before = state_of(config)
  after, (metrics,) = run(config, before, [batch_of(0)])
  assert math.isfinite(metrics['scalars']['train/loss'])
  assert math.isfinite(metrics['scalars']['grad_norm/global'])
  assert not math.isfinite(metrics['scalars']['update_norm/global'])
  assert same_bits(after.params, before.params)
  assert int(after.nonfinite_in_a_row) == 1


def test_steps_that_were_clipped_are_counted():
  config = GRADIENT.replace({'optimizer.learning_rate': 0.05, 'run.on_nonfinite': 'skip', 'optimizer.clip': 4.0})
  state, history = run(config, state_of(config), [*map(batch_of, range(12)), bad_batch()])
  norms = np.array([float(metrics['scalars']['grad_norm/global']) for metrics in history])
  clipped = np.cumsum(norms > 4)  # the last one is not finite, and no update
  assert 0 < clipped[-1] < 12
  shares = [float(metrics['scalars']['grad_norm/clipped_steps']) for metrics in history]
  np.testing.assert_allclose(shares, clipped / np.arange(1, 14), rtol=1e-6)
  assert int(state.clipped) == clipped[-1]
