"""The moving average of the weights: its closed form, sharding, evaluation and resuming."""

import jax
import jax.numpy as jnp
import made_run
import numpy as np
import pytest
import quick_runs
from tiny_steps import CONFIG, SKIP, bad_batch, batch_of, compiled_init, compiled_step, same_bits

from training.data.loading import load_data
from training.digests import array_checksums
from training.mesh import partition
from training.optimizer import make_average
from training.programs import programs_for
from training.run_files.checkpoint import steps_in
from training.scoring import Scoring
from training.state import AveragedState, State, with_params


def closed_form(history, decay: float):
  """sum_k d^(t - k) x_k over sum_k d^(t - k), in float64."""
  weights = decay ** np.arange(len(history) - 1, -1, -1.0)
  return jax.tree.map(lambda *xs: np.tensordot(weights / weights.sum(), np.asarray(xs, float), 1), *history)


def assert_close(tree, expected, rtol):
  for one, other in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize('decay', [0.5, 0.99, 0.99999])
def test_the_average_equals_its_closed_form(decay):
  average, rng = make_average(CONFIG.replace({'optimizer.ema': decay}).optimizer), np.random.default_rng(0)
  mean, history = {'x': jnp.full(5, 1e3)}, []  # the initial value has no weight
  for updates in range(40):
    history.append({'x': np.float32(3 + rng.normal(size=5))})
    mean = average(mean, history[-1], jnp.int32(updates))
    np.testing.assert_allclose(mean['x'], closed_form(history, decay)['x'], rtol=3e-5 if updates == 0 else 1e-4)


@pytest.mark.slow
def test_dropped_updates_are_not_in_the_average():
  config = SKIP.replace({'optimizer.ema': 0.8})
  state, history = compiled_init(config)(np.uint32(0)), []
  assert same_bits(state.evaluated_params, state.params)
  for batch in (batch_of(0), batch_of(1), bad_batch(), batch_of(2), bad_batch()):
    before = state
    state, metrics = compiled_step(config)(state, batch)
    if np.isfinite(metrics['scalars']['train/loss']):
      history.append(state.params)
      assert_close(state.ema, closed_form(history, 0.8), rtol=1e-5)
    else:
      assert same_bits(state.ema, before.ema)
  assert len(history) == 3
  assert not same_bits(state.ema, state.params)
  assert same_bits(state.evaluated_params, state.ema)


def test_without_ema_the_state_has_no_field_for_it():
  off, on = (jax.eval_shape(compiled_init(c), np.uint32(0)) for c in (SKIP, SKIP.replace({'optimizer.ema': 0.9})))
  assert type(off) is State
  names, more = (set(jax.eval_shape(array_checksums, state)) for state in (off, on))
  assert {name.replace('.ema', '.params') for name in more - names} == {n for n in names if n.startswith('.params')}


def test_the_average_is_sharded_like_the_parameters():
  state = jax.eval_shape(compiled_init(SKIP.replace({'optimizer.ema': 0.9})), np.uint32(0))
  specs = [{jax.tree_util.keystr(path[1:]): partition(path, leaf.shape, 2) for path, leaf in leaves} for leaves in (
    [pair for pair in jax.tree.leaves_with_path(state) if pair[0][0].name == name] for name in ('params', 'ema')
  )]  # fmt: skip
  assert specs[0] == specs[1]
  assert any('fsdp' in spec for spec in specs[0].values())


def test_with_init_from_the_average_starts_from_those_parameters():
  config = CONFIG.replace({'optimizer.ema': 0.9})
  state = with_params(made_run.state_at(0, config), made_run.state_at(7, config).params)
  assert isinstance(state, AveragedState)
  assert all(np.all(leaf == 7) for leaf in jax.tree.leaves((state.params, state.ema)))
  assert all(a is not b for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(state.ema), strict=True))


@pytest.mark.slow
def test_the_average_is_evaluated_and_resumes_to_the_bit(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'text.txt').write_bytes(quick_runs.EASY)
  config = quick_runs.CONFIG.replace({'optimizer.ema': 0.95})
  result = quick_runs.train(tmp_path / 'unstopped', config)
  state, data, programs = (
    quick_runs.final_state(tmp_path / 'unstopped', config),
    load_data(config),
    programs_for(config),
  )
  averaged, raw = (
    Scoring(config, programs, params).mean_loss('validation', data.validation) for params in (state.ema, state.params)
  )
  assert result['evaluated_weights'] == 'ema 0.95'
  assert result['val_loss'] == averaged != raw
  last = [row['validation/loss'] for row in quick_runs.rows_of(tmp_path / 'unstopped') if 'validation/loss' in row][-1]
  sequences = config.run.evaluation_batches * config.run.batch_size
  assert last == Scoring(config, programs, state.ema).mean_loss('validation', data.validation, sequences)
  with pytest.raises(quick_runs.Stop):
    quick_runs.train(tmp_path / 'parts', config, report=quick_runs.stop_at(30))
  assert steps_in(tmp_path / 'parts' / 'checkpoints') == [24, 12]
  quick_runs.train(tmp_path / 'parts', config)
  quick_runs.assert_same_run(tmp_path / 'unstopped', tmp_path / 'parts', config)
