"""Measured gradients: their data frame, and measuring a run that is still training."""

import math
import shutil

import fake_gradients
import jax
import made_run
import pandas as pd
import pytest

from lab.inspect import gradients
from lab.inspect.gradients import GradientSamples, InspectedModel, as_dataframe
from training.config import Config, ConfigError
from training.data.loading import load_data
from training.run_files import checkpoint, trained_run

CONFIG = Config().replace({
  'data.task': 'copy', 'data.sequence_length': 8, 'model.num_layers': 2, 'model.d_model': 8, 'model.num_heads': 2,
  'run.steps': 60, 'run.batch_size': 4,
})  # fmt: skip


@pytest.fixture
def run(tmp_path):
  """A run with checkpoints at steps 24 and 36."""
  return made_run.make_run(tmp_path / 'seed_0', CONFIG, load_data(CONFIG))


def train_on(run, step: int) -> None:
  """Adds a checkpoint and deletes the oldest, as training does."""
  steps = trained_run.checkpoint_steps(run)
  directory = run / 'checkpoints'
  shutil.copytree(directory / str(steps[-1]), directory / str(step))
  shutil.rmtree(directory / str(steps[0]))


def rotate_before(monkeypatch, run, steps: list[int], times: int = 1, partly: bool = False) -> None:
  """Lets training continue between selecting and reading a checkpoint."""
  load_checkpoint, pending = checkpoint.load_checkpoint, list(range(steps[0], steps[0] + 100 * times, 100))

  def late(path, like, check):
    if pending:
      train_on(run, pending.pop(0))
      if partly:  # rmtree is under way
        path.mkdir(exist_ok=True)
        (path / 'manifest.json').write_text('{')
    return load_checkpoint(path, like, check)

  monkeypatch.setattr(checkpoint, 'load_checkpoint', late)


def fake_measure(inspected, batches):
  """Loads the checkpoint without measuring."""
  trained_run.checkpointed_state(inspected.config, inspected.directory, inspected.step)
  return GradientSamples(inspected, {})


def inspected_steps(run, monkeypatch, step: int, option: str):
  monkeypatch.setattr(gradients, 'measure', fake_measure)
  found, skipped = gradients.measure_with_retries(InspectedModel('it', CONFIG, step, run), option, 2)
  return [one.model.step for one in found], skipped


@pytest.mark.parametrize('partly', [False, True])
def test_latest_follows_a_deleted_checkpoint(run, monkeypatch, partly):
  train_on(run, 48)  # 36 and 48
  rotate_before(monkeypatch, run, [60], partly=partly)
  assert inspected_steps(run, monkeypatch, 36, 'latest')[0] == [60]


def test_all_skips_a_deleted_checkpoint_with_a_message(run, monkeypatch):
  rotate_before(monkeypatch, run, [48])
  steps, message = inspected_steps(run, monkeypatch, 24, 'all')
  assert steps == []
  assert 'the checkpoint of step 24 in' in message
  assert 'available: init and 36, 48' in message


def test_a_deleted_checkpoint_given_by_number_is_an_error(run, monkeypatch):
  rotate_before(monkeypatch, run, [48])
  with pytest.raises(ConfigError, match=r'the checkpoint of step 24 in .* was deleted, .* available: init and 36, 48'):
    inspected_steps(run, monkeypatch, 24, '24')


def test_checkpoints_deleted_repeatedly_are_an_error(run, monkeypatch):
  def deleted(inspected, batches):
    raise trained_run.CheckpointDeleted('deleted')

  monkeypatch.setattr(gradients, 'measure', deleted)
  with pytest.raises(ConfigError, match='deleted faster than they can be read'):
    gradients.measure_with_retries(InspectedModel('it', CONFIG, 36, run), 'latest', 2)


def test_a_damaged_checkpoint_is_not_reported_as_deleted(run, monkeypatch):
  (run / 'checkpoints/36/manifest.json').write_text('{')
  for option in ('latest', 'all', '36'):
    with pytest.raises(ConfigError, match=r'manifest.json has changed: choose another --step'):
      inspected_steps(run, monkeypatch, 36, option)


def test_a_programming_error_is_raised(run, monkeypatch):
  def broken(path, like, check):
    raise ZeroDivisionError

  monkeypatch.setattr(checkpoint, 'load_checkpoint', broken)
  with pytest.raises(ZeroDivisionError):
    trained_run.checkpointed_state(CONFIG, run, 36)


def test_an_orbax_error_on_deleted_files_is_reported_as_deleted(run, monkeypatch):
  def deleted(path, like, check):
    train_on(run, 48)
    raise ValueError('tensorstore: NOT_FOUND')

  monkeypatch.setattr(checkpoint, 'load_checkpoint', deleted)
  with pytest.raises(trained_run.CheckpointDeleted):
    trained_run.checkpointed_state(CONFIG, run, 24)


def test_parameters_are_those_of_the_checkpoint(run):
  params = trained_run.checkpointed_state(CONFIG, run, 36).params
  assert {float(leaf.min()) for leaf in jax.tree.leaves(params)} == {36.0}


def test_dataframe_has_one_row_per_layer_sublayer_and_metric():
  one = fake_gradients.measured(3, name='post', step=0)
  table = as_dataframe([one])
  assert list(table.columns) == ['model', 'step', 'layer', 'sublayer', 'measure', 'mean', 'low', 'high', 'batches']
  assert not table.duplicated(['model', 'step', 'layer', 'sublayer', 'measure']).any()
  row = table[(table.layer == 1) & (table.sublayer == 'feed_forward') & (table.measure == 'total')].iloc[0]
  values = one.samples['total'][:, 1, 1]
  assert row['mean'] == pytest.approx(values.mean())
  half = 4.302652729911275 * values.std(ddof=1) / math.sqrt(3)  # Student's t, 2 degrees of freedom
  assert (row['low'], row['high']) == pytest.approx((values.mean() - half, values.mean() + half))
  assert set(table[table.measure == 'attention_entropy'].sublayer) == {'head_0', 'head_1'}
  assert pd.isna(table[table.sublayer == 'head'].iloc[0]['layer'])
  assert table[table.sublayer == 'output'].iloc[0][['layer', 'measure']].tolist() == [3, 'total']
