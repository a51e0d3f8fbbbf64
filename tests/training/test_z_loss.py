"""The z-loss, c log^2 Z: part of the training loss, but of no evaluation."""

import numpy as np
import pytest
from tiny_steps import (
  CONFIG,
  GRADIENT,
  batch_of,
  check_by_finite_differences,
  compiled_logits,
  compiled_step,
  difference,
  loss_by_hand,
  norm,
  quick_jit,
  random_params,
  run,
  state_of,
)

from training.inspection import inspect
from training.step import make_evaluation_step

Z = {'optimizer.z_loss': 0.05}  # large enough to matter


def z_loss_by_hand(config, params, batch) -> float:
  """From log Z of each row of logits, in float64 with NumPy."""
  logits_BTV = np.asarray(compiled_logits(config.model)(params, batch['inputs_BT']), np.float64)
  log_z_BT = np.log(np.exp(logits_BTV).sum(-1))
  return float(0.05 * (log_z_BT**2 * batch['weights_BT']).sum() / batch['weights_BT'].sum())


@pytest.mark.parametrize(
  'changes', [Z, pytest.param(Z | {'optimizer.accumulate': 4}, marks=pytest.mark.slow)], ids=['whole', 'in parts']
)
def test_both_losses_are_logged(changes):
  config = CONFIG.replace(changes)
  _, (metrics,) = run(config, state_of(config), [batch_of(1)])
  scalars = metrics['scalars']
  assert float(scalars['train/loss']) == pytest.approx(
    loss_by_hand(config, random_params(config), batch_of(1)), rel=1e-5
  )
  by_hand = z_loss_by_hand(config, random_params(config), batch_of(1))
  assert float(scalars['train/z_loss']) == pytest.approx(by_hand, rel=1e-5)
  assert by_hand > 0.05


@pytest.mark.slow
def test_the_gradient_is_of_the_sum_of_both_losses():
  config = GRADIENT.replace(Z | {'optimizer.clip': 0.0})
  state = state_of(config)
  after, metrics = compiled_step(config)(state, batch_of(1))
  gradient = difference(state.params, after.params)

  def by_hand(params):
    return loss_by_hand(config, params, batch_of(1)) + z_loss_by_hand(config, params, batch_of(1))

  check_by_finite_differences(gradient, by_hand, state.params)
  plain, _ = compiled_step(GRADIENT.replace({'optimizer.clip': 0.0}))(state, batch_of(1))
  assert norm(difference(after.params, plain.params)) > 0.02 * norm(gradient)
  assert float(metrics['scalars']['grad_norm/global']) == pytest.approx(norm(gradient), rel=1e-4)


def test_evaluation_excludes_the_z_loss():
  config = CONFIG.replace(Z)
  batch, params = batch_of(3), random_params(config)
  nats, scored = quick_jit(make_evaluation_step(config))(params, batch)
  assert float(nats / scored) == pytest.approx(loss_by_hand(config, params, batch), rel=1e-5)


def test_without_z_loss_it_is_not_logged():
  _, (metrics,) = run(CONFIG, state_of(CONFIG), [batch_of(0)])
  assert 'train/z_loss' not in metrics['scalars']


@pytest.mark.slow
def test_inspection_includes_z_loss_in_gradients_but_not_in_the_loss():
  config = CONFIG.replace(Z)
  _, (metrics,) = run(config, state_of(config), [batch_of(1)])
  found = inspect(config, random_params(config), batch_of(1), by_sequence=True)
  assert found['loss'] == pytest.approx(float(metrics['scalars']['train/loss']), rel=1e-5)
  query = metrics['parameter_norms']['grad_norm']['blocks']['attention']['query']['kernel']
  np.testing.assert_allclose(found['grad_norm/attention/query'], query, rtol=1e-4)
  plain = inspect(CONFIG, random_params(CONFIG), batch_of(1), by_sequence=True)
  for name in ('grad_norm/head', 'sequence_grad_norm/head', 'total'):
    assert (np.abs(found[name] / plain[name] - 1) > 1e-3).all(), name
