import functools

import jax
import numpy as np
import pytest
from tiny_steps import CONFIG, batch_of, compiled_step, random_params, state_of

import model
from training.inspection import inspect
from training.step import weighted_loss

RELU = CONFIG.replace({'model.feed_forward': 'relu'})


@functools.cache
def inspected(**options) -> dict[str, np.ndarray]:
  return inspect(RELU, random_params(RELU), batch_of(1), **options)


@pytest.mark.slow
def test_the_arrays_are_as_documented():
  shapes = {name: values.shape for name, values in inspected(by_sequence=True).items()}
  by_kind = {kind: {s for name, s in shapes.items() if name.startswith(f'{kind}/')} for kind in (
    'grad_norm', 'param_norm', 'sequence_grad_norm'
  )}  # fmt: skip
  assert all(found == {(2,), ()} for found in by_kind.values())
  assert {name: shape for name, shape in shapes.items() if '/' not in name} == {
    'loss': (), 'output': (), 'silent_units': (2,),
    **dict.fromkeys(('total', 'skip', 'branch', 'cosine', 'gain'), (2, 2)),
    **dict.fromkeys(('stream_rms', 'branch_rms', 'branch_ratio', 'branch_cosine', 'relative_residual'), (2, 2)),
    **dict.fromkeys(('attention_entropy', 'largest_logit'), (2, 2)),
  }  # fmt: skip
  assert {values.dtype for values in inspected(by_sequence=True).values()} == {np.dtype('float64')}


@pytest.mark.slow
def test_it_measures_the_same_as_a_training_step():
  _, metrics = compiled_step(CONFIG)(state_of(CONFIG), batch_of(1))
  found = inspect(CONFIG, random_params(CONFIG), batch_of(1))
  assert found['loss'] == pytest.approx(float(metrics['scalars']['train/loss']), rel=1e-5)
  skip, branch, _ = np.moveaxis(np.asarray(metrics['stream_gradient']['blocks']), -1, 0)
  np.testing.assert_allclose(found['skip'], np.sqrt(skip), rtol=1e-4)
  np.testing.assert_allclose(found['branch'], np.sqrt(branch), rtol=1e-4)
  query = metrics['parameter_norms']['grad_norm']['blocks']['attention']['query']['kernel']
  np.testing.assert_allclose(found['grad_norm/attention/query'], query, rtol=1e-4)


@pytest.mark.slow
def test_squares_over_positions_sum_to_the_whole():
  separate, summed = inspected(by_position=True), inspected()
  assert (separate['total'].shape, separate['output'].shape) == ((2, 2, 8), (8,))
  for name in ('total', 'skip', 'branch', 'output'):
    np.testing.assert_allclose(np.sqrt((separate[name] ** 2).sum(-1)), summed[name], rtol=1e-5)


@pytest.mark.slow
def test_batch_and_sequence_gradient_norms_by_hand():
  """One gradient per sequence: the norm of their mean, and the root mean square of their norms."""
  batch, params = batch_of(1) | {'weights_BT': np.ones((8, 8), np.float32)}, random_params(CONFIG)
  gradient = jax.jit(jax.grad(lambda params, row: weighted_loss(CONFIG, params, row, None)[0]))
  each = [gradient(params, {name: rows[k : k + 1] for name, rows in batch.items()}) for k in range(8)]
  kernels = np.stack([np.asarray(g['blocks']['feed_forward']['down']['kernel'], np.float64) for g in each])
  found = inspect(CONFIG, params, batch, by_sequence=True)
  mean_first = np.sqrt((kernels.mean(0) ** 2).sum((1, 2)))
  norm_first = np.sqrt((kernels**2).sum((2, 3)).mean(0))
  np.testing.assert_allclose(found['grad_norm/feed_forward/down'], mean_first, rtol=1e-4)
  np.testing.assert_allclose(found['sequence_grad_norm/feed_forward/down'], norm_first, rtol=1e-4)
  assert (norm_first > 1.05 * mean_first).all()  # the two differ


@pytest.mark.slow
def test_repeating_the_batch_measures_the_same():
  batch = batch_of(1)
  once, twice = (
    inspect(RELU, random_params(RELU), {name: np.concatenate([rows] * times) for name, rows in batch.items()})
    for times in (1, 2)
  )
  for name, values in once.items():
    np.testing.assert_allclose(twice[name], values, rtol=1e-5, atol=1e-5 if 'cosine' in name else 0, err_msg=name)


@pytest.mark.slow
def test_dropout_is_not_applied():
  dropped = RELU.replace({'model.dropout': 0.5})
  found = inspect(dropped, random_params(RELU), batch_of(1))
  assert found['loss'] == inspected()['loss']


@pytest.mark.slow
@pytest.mark.parametrize('changes', [{'model.dtype': 'bfloat16'}, {'model.remat': True}, {'model.unroll': 2}], ids=str)
def test_unroll_and_remat_measure_the_same(changes):
  config = RELU.replace(changes)
  found = inspect(config, random_params(RELU), batch_of(1))
  tolerance = 0.1 if 'model.dtype' in changes else 1e-4
  for name in ('total', 'skip', 'branch', 'grad_norm/feed_forward/down', 'branch_rms', 'attention_entropy'):
    np.testing.assert_allclose(found[name], inspected()[name], rtol=tolerance, err_msg=name)
    assert found[name].dtype == np.float64


@pytest.mark.slow
def test_initial_values_are_measured_unchanged():
  params = model.init(CONFIG.model, jax.random.key(0))
  found = inspect(CONFIG, params, batch_of(0))
  np.testing.assert_allclose(
    found['param_norm/attention/query'],
    np.linalg.norm(np.asarray(params['blocks']['attention']['query']['kernel'], float), axis=(1, 2)),
    rtol=1e-5,
  )
