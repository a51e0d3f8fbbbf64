"""Steps whose loss, gradient or update is not finite: they are dropped and counted, and finally end the run."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_steps import CONFIG, GRADIENT, SKIP, bad_batch, batch_of, run, same_bits, state_of

from training.step import has_diverged


@pytest.mark.parametrize('config', [CONFIG, SKIP], ids=['stop', 'skip'])
def test_a_nonfinite_step_changes_nothing_and_is_counted(config):
  before, _ = run(config, state_of(config), map(batch_of, range(3)))
  after, (metrics,) = run(config, before, [bad_batch()])
  assert same_bits(after.params, before.params)
  assert same_bits(after.optimizer, before.optimizer)
  assert (int(after.step), int(after.nonfinite_in_a_row)) == (4, 1)
  assert metrics['scalars']['nonfinite_in_a_row'] == 1
  assert np.isnan(metrics['scalars']['train/loss'])
  assert np.isnan(metrics['scalars']['grad_norm/clipped'])
  assert float(metrics['scalars']['learning_rate']) == pytest.approx(2e-2)  # of the 4th update, at whichever step


def test_parameter_norms_are_computed_where_a_run_diverges():
  _, history = run(CONFIG, state_of(CONFIG), [batch_of(0), bad_batch()])  # the second step is not logged by interval
  assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(history[1]['parameter_norms']['grad_norm']))


def test_after_stop_no_step_changes_parameters():
  stopped, _ = run(CONFIG, state_of(CONFIG), [batch_of(0), bad_batch()])
  later, history = run(CONFIG, stopped, map(batch_of, range(12)))
  assert same_bits((later.params, later.optimizer), (stopped.params, stopped.optimizer))
  assert [int(metrics['scalars']['nonfinite_in_a_row']) for metrics in history] == list(range(2, 14))
  assert int(later.step) == 14
  assert max(float(metrics['scalars']['grad_norm/global']) for metrics in history) > CONFIG.optimizer.clip
  assert int(later.clipped) == int(stopped.clipped)  # a dropped update does not count as clipped


def test_skip_continues_as_without_the_nonfinite_batch():
  batches = [batch_of(0), bad_batch(), bad_batch(), batch_of(1), bad_batch(), batch_of(2)]
  skipped, history = run(SKIP, state_of(SKIP), batches)
  smooth, _ = run(SKIP, state_of(SKIP), map(batch_of, range(3)))
  assert [int(metrics['scalars']['nonfinite_in_a_row']) for metrics in history] == [0, 1, 2, 0, 1, 0]
  rates = [float(metrics['scalars']['learning_rate']) for metrics in history]  # of the update, applied or dropped
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
def test_nonfinite_losses_gradients_and_updates_count(harm):
  state = state_of(CONFIG)
  head = state.params['head']['kernel']
  planted = head.at[0, 0].set(jnp.nan) if 'NaN' in harm else head * 1e25
  state = dataclasses.replace(state, params=state.params | {'head': {'kernel': planted}})
  after, (metrics,) = run(CONFIG, state, [batch_of(0)])
  assert math.isfinite(metrics['scalars']['train/loss']) == (harm == 'the gradient alone overflows')
  assert not math.isfinite(metrics['scalars']['grad_norm/global'])
  assert same_bits((after.params, after.optimizer), (state.params, state.optimizer))
  assert int(after.nonfinite_in_a_row) == 1


@pytest.mark.slow
def test_an_overflowing_update_is_not_applied():
  config = CONFIG.replace({'optimizer.learning_rate': 3e38, 'optimizer.warmup_steps': 0, 'optimizer.weight_decay': 1e3})
  before = state_of(config)
  after, (metrics,) = run(config, before, [batch_of(0)])
  assert math.isfinite(metrics['scalars']['train/loss'])
  assert math.isfinite(metrics['scalars']['grad_norm/global'])
  assert not math.isfinite(metrics['scalars']['update_norm/global'])
  assert same_bits(after.params, before.params)
  assert int(after.nonfinite_in_a_row) == 1


@pytest.mark.slow
def test_clipped_steps_are_counted():
  config = GRADIENT.replace({'optimizer.learning_rate': 0.05, 'run.on_nonfinite': 'skip', 'optimizer.clip': 4.0})
  state, history = run(config, state_of(config), [*map(batch_of, range(12)), bad_batch()])
  norms = np.array([float(metrics['scalars']['grad_norm/global']) for metrics in history])
  clipped = np.cumsum(norms > 4)  # the last one is not finite: not applied
  assert 0 < clipped[-1] < 12
  shares = [float(metrics['scalars']['grad_norm/clipped_steps']) for metrics in history]
  np.testing.assert_allclose(shares, clipped / np.arange(1, 14), rtol=1e-6)
  assert int(state.clipped) == clipped[-1]
