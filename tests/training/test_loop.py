import concurrent.futures
import json
import math
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from quick_runs import (
  CONFIG,
  EVALUATED,
  LABELS,
  LOGGED,
  RANDOM,
  Stop,
  assert_same_run,
  final_state,
  quick_jit,
  rows_of,
  train,
)

import model
from model.counts import flops_per_token, num_parameters
from training import loop
from training.config import Config
from training.data.batches import train_batches
from training.data.loading import load_data
from training.run_files.checkpoint import Checkpoints
from training.run_files.result import read_result

pytestmark = pytest.mark.usefixtures('quick_programs', 'in_folder')


# --- a run that succeeds


def test_a_run_writes_its_files(finished):
  directory, result, _ = finished
  assert {'config.json', 'metrics.jsonl', 'checkpoints', 'tensorboard', 'result.json'} <= set(os.listdir(directory))
  assert Config.from_flat(json.loads((directory / 'config.json').read_text())) == CONFIG
  assert read_result(directory) == result
  assert sorted(path.name for path in (directory / 'checkpoints').iterdir() if path.is_dir()) == ['36', '40']
  assert not [path for path in directory.rglob('*') if path.name.startswith('.')]


def test_the_result_of_a_finished_run(finished):
  _, result, _ = finished
  assert list(result)[:4] == ['experiment', 'variant', 'seed', 'status']
  expected = LABELS | {
    'status': 'completed', 'steps': 40, 'tokens': 40 * 4 * 8, 'learning_rate': 0.05, 'diverged_at': None,
    'parameters': num_parameters(CONFIG.model), 'flops_per_token': flops_per_token(CONFIG.model, 8), 'resumed_at': None,
    'unigram_entropy': pytest.approx(math.log(8), abs=0.01),
  }  # fmt: skip
  assert {name: result[name] for name in expected} == expected
  assert 0 < result['val_loss'] < 0.9 * math.log(8)
  for split, loss in (('val', result['val_loss']), ('test', result['test_loss'])):
    assert result[f'{split}_bits_per_byte'] == pytest.approx(loss / math.log(2))
  assert result['seconds'] > 0
  assert result['tokens_per_second'] > 0


def test_metrics_are_logged_when_due(finished):
  rows = rows_of(finished[0])
  assert [row['step'] for row in rows] == sorted({*LOGGED, *EVALUATED})
  assert [row['step'] for row in rows if 'train/loss' in row] == LOGGED
  assert [row['step'] for row in rows if 'validation/loss' in row] == EVALUATED
  assert [row['step'] for row in rows if 'grad_norm/block_00/attention/query' in row] == LOGGED
  assert all(row['grad_norm/block_00/attention/query'] > 0 for row in rows if row['step'] in LOGGED)
  losses = [row['validation/loss'] for row in rows if 'validation/loss' in row]
  assert losses[-1] < losses[0]
  assert rows[-1]['validation/bits_per_byte'] == pytest.approx(losses[-1] / math.log(2))


def test_the_first_row_is_of_the_initial_values(finished):
  row = rows_of(finished[0])[0]
  params = quick_jit(lambda: model.init(CONFIG.model, jax.random.key(0)))()
  (batch,) = train_batches(load_data(CONFIG), 4, 0, 0, 1)
  logits, _ = quick_jit(lambda params, tokens: model.apply(CONFIG.model, params, tokens))(params, batch['inputs_BT'])
  logits = np.asarray(logits, np.float64)
  shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  nats = -np.log(np.take_along_axis(shares, batch['targets_BT'][..., None], -1))
  assert row['train/loss'] == pytest.approx(nats.mean(), rel=1e-4)
  squares = [np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(params)]
  assert row['param_norm/global'] == pytest.approx(sum(squares) ** 0.5, rel=1e-5)
  assert row['learning_rate'] == pytest.approx(0.05 / 4)


def test_progress_is_reported(finished):
  directory, _, reports = finished
  reports = [report for report in reports if 'step' in report]
  assert [(report['step'], report['steps']) for report in reports] == [(step, 40) for step in LOGGED]
  losses = [row['train/loss'] for row in rows_of(directory) if 'train/loss' in row]
  assert [report['loss'] for report in reports] == losses
  assert reports[0]['tokens_per_second'] is None  # the clock was not stopped yet
  assert all(report['tokens_per_second'] > 0 for report in reports[1:])


@pytest.mark.slow
def test_the_same_run_gives_the_same_bits_and_another_seed_does_not(finished, quick_programs, tmp_path):
  compiled, events = len(quick_programs), []
  train(tmp_path / 'again')
  assert_same_run(tmp_path / 'again', finished[0])
  jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
  try:
    other = {seed: train(tmp_path / seed, CONFIG.replace({f'{seed}': 1})) for seed in ('run.init_seed', 'data.seed')}
  finally:
    jax.monitoring.clear_event_listeners()
  assert not [name for name in events if 'backend_compile' in name]
  assert len(quick_programs) == compiled  # one compilation serves every seed
  losses = {result['val_loss'] for result in other.values()}
  assert len(losses | {finished[1]['val_loss']}) == 3
  first = {name: rows_of(tmp_path / name)[0] for name in ('again', *other)}
  assert first['data.seed']['param_norm/global'] == first['again']['param_norm/global']
  assert first['run.init_seed']['param_norm/global'] != first['again']['param_norm/global']


# --- runs that diverge or fail


@pytest.fixture
def spoil(monkeypatch):
  """Makes the loss of these steps NaN."""
  bad: set[int] = set()

  def spoiled(data, batch_size, seed, start_step, num_steps, rows):
    for step, batch in enumerate(train_batches(data, batch_size, seed, start_step, num_steps, rows), start_step + 1):
      if step in bad:
        batch['weights_BT'] = np.full_like(batch['weights_BT'], np.nan)
      yield batch

  monkeypatch.setattr(loop, 'train_batches', spoiled)
  return bad


def assert_diverged(directory: Path, result: dict, diverged_at: int) -> None:
  assert (result['status'], result['diverged_at']) == ('diverged', diverged_at)
  for name in ('val_loss', 'val_bits_per_byte', 'test_loss', 'test_bits_per_byte'):
    assert result[name] is None
  assert result == read_result(directory)
  last = rows_of(directory)[-1]
  assert (last['step'], last['grad_norm/global']) == (diverged_at, None)


@pytest.mark.slow
def test_a_huge_learning_rate_diverges(tmp_path):
  result = train(tmp_path, CONFIG.replace({'optimizer.learning_rate': 1e9, 'optimizer.warmup_steps': 0}))
  assert_diverged(tmp_path, result, 2)
  assert [row['step'] for row in rows_of(tmp_path)] == [1, 2]
  assert result['learning_rate'] == 1e9


@pytest.mark.parametrize('step', [1, 2, 12, 13, 20, 39, 40])
def test_the_first_step_that_is_not_finite_ends_a_run(finished, tmp_path, spoil, step):
  spoil.add(step)
  result = train(tmp_path)
  assert_diverged(tmp_path, result, step)
  assert rows_of(tmp_path)[-1]['train/loss'] is None
  logged_before = [row for row in rows_of(finished[0]) if row['step'] < step]
  assert rows_of(tmp_path)[:-1] == logged_before
  assert result['steps'] in (step, min(step + 1, 40))  # one more may already be dispatched
  state = final_state(tmp_path)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
  assert int(state.optimizer[-1].count) == step - 1


def test_a_diverged_run_killed_before_its_result_ends_the_same(tmp_path, monkeypatch, spoil):
  spoil.add(5)

  def stop(*args):
    raise Stop

  expected = train(tmp_path / 'unstopped')
  with monkeypatch.context() as patch:
    patch.setattr(loop, 'result_of', stop)
    with pytest.raises(Stop):
      train(tmp_path / 'killed')
  assert_diverged(tmp_path / 'killed', train(tmp_path / 'killed'), 5)
  assert expected['diverged_at'] == 5
  assert_same_run(tmp_path / 'killed', tmp_path / 'unstopped')


SKIP = CONFIG.replace({'run.on_nonfinite': 'skip'})


@pytest.mark.slow
def test_skip_drops_nonfinite_updates(tmp_path, spoil):
  spoil.update({3, 15, 16, 17, 40})
  result = train(tmp_path, SKIP)
  assert (result['status'], result['steps'], result['diverged_at']) == ('completed', 40, None)
  losses = {row['step']: row['train/loss'] for row in rows_of(tmp_path) if 'train/loss' in row}
  assert list(losses) == LOGGED
  assert [step for step, loss in losses.items() if loss is None] == [15, 40]
  state = final_state(tmp_path, SKIP)
  assert (int(state.step), int(state.optimizer[-1].count)) == (40, 35)
  counts = {row['step']: row['nonfinite_in_a_row'] for row in rows_of(tmp_path) if 'train/loss' in row}
  assert counts == {1: 0, 15: 1, 30: 0, 40: 1}


@pytest.mark.parametrize('start', [6, 11])  # the tenth is a plain step, or one with an evaluation
def test_skip_gives_up_after_ten_in_a_row(tmp_path, spoil, start):
  spoil.update(range(start, start + 10))
  result = train(tmp_path, SKIP)
  assert (result['status'], result['diverged_at']) == ('diverged', start)
  assert result['val_loss'] is None
  assert rows_of(tmp_path)[-1]['step'] == start + 9
  assert int(final_state(tmp_path, SKIP).optimizer[-1].count) == start - 1


def test_a_run_that_learns_nothing_is_failed_to_learn(tmp_path, monkeypatch):
  (tmp_path / 'text.txt').write_bytes(RANDOM)
  monkeypatch.chdir(tmp_path)
  result = train(tmp_path / 'run')
  assert (result['status'], result['diverged_at'], result['steps']) == ('failed_to_learn', None, 40)
  assert result['val_loss'] >= 0.99 * result['unigram_entropy']
  assert result['val_bits_per_byte'] == pytest.approx(result['val_loss'] / math.log(2))


def test_a_failed_save_fails_the_run(tmp_path, monkeypatch):
  failed: concurrent.futures.Future = concurrent.futures.Future()
  failed.set_exception(OSError(28, 'No space left on device'))

  def break_saving(self, state, about):
    self.wait()
    self._pending = failed

  monkeypatch.setattr(Checkpoints, 'save', break_saving)
  with pytest.raises(OSError, match='No space left on device'):
    train(tmp_path)
  assert not (tmp_path / 'result.json').exists()
