"""A run that is being trained while it is looked at."""

import shutil

import jax
import made_run
import pytest

from lab.inspect import gradients
from lab.inspect.gradients import Measured, Subject
from training.config import Config, ConfigError
from training.data.loading import load_data
from training.run_files import checkpoint, trained_run

CONFIG = Config().replace({
  'data.task': 'copy', 'data.sequence_length': 8, 'model.num_layers': 2, 'model.d_model': 8, 'model.num_heads': 2,
  'run.steps': 60, 'run.batch_size': 4,
})  # fmt: skip


@pytest.fixture
def run(tmp_path):
  """A run with checkpoints of 24 and 36."""
  return made_run.make_run(tmp_path / 'seed_0', CONFIG, load_data(CONFIG))


def train_on(run, step: int) -> None:
  """What training does after some steps: a checkpoint more, and the oldest goes."""
  steps = trained_run.checkpoint_steps(run)
  folder = run / 'checkpoints'
  shutil.copytree(folder / str(steps[-1]), folder / str(step))
  shutil.rmtree(folder / str(steps[0]))


def rotate_before(monkeypatch, run, steps: list[int], times: int = 1, partly: bool = False) -> None:
  """Has training go on between the moment a checkpoint is chosen and that in which it is read."""
  load, pending = checkpoint.load, list(range(steps[0], steps[0] + 100 * times, 100))

  def late(path, like, check):
    if pending:
      train_on(run, pending.pop(0))
      if partly:  # rmtree is under way
        path.mkdir(exist_ok=True)
        (path / 'manifest.json').write_text('{')
    return load(path, like, check)

  monkeypatch.setattr(checkpoint, 'load', late)


def fake_measure(subject, batches):
  """Loads what is measured, and measures nothing."""
  trained_run.checkpointed_state(subject.config, subject.directory, subject.step)
  return Measured(subject, {})


def looked_at(run, monkeypatch, step: int, asked: str):
  monkeypatch.setattr(gradients, 'measure', fake_measure)
  found, left_out = gradients.measure_in_time(Subject('it', CONFIG, step, run), asked, 2)
  return [one.subject.step for one in found], left_out


@pytest.mark.parametrize('partly', [False, True])
def test_latest_is_what_is_the_newest_when_it_is_read(run, monkeypatch, partly):
  train_on(run, 48)  # 36 and 48
  rotate_before(monkeypatch, run, [60], partly=partly)
  assert looked_at(run, monkeypatch, 36, 'latest')[0] == [60]


def test_all_leaves_out_what_was_deleted_and_says_so(run, monkeypatch):
  rotate_before(monkeypatch, run, [48])
  steps, said = looked_at(run, monkeypatch, 24, 'all')
  assert steps == []
  assert 'no whole checkpoint of step 24 any more' in said
  assert 'there are init and 36, 48' in said


def test_a_step_asked_for_by_its_number_that_was_deleted_is_one_line(run, monkeypatch):
  rotate_before(monkeypatch, run, [48])
  with pytest.raises(ConfigError, match=r'has no whole checkpoint of step 24 any more.* there are init and 36, 48'):
    looked_at(run, monkeypatch, 24, '24')


def test_checkpoints_that_vanish_again_and_again_end_in_one_line(run, monkeypatch):
  def gone(subject, batches):
    raise trained_run.CheckpointDeleted('deleted')

  monkeypatch.setattr(gradients, 'measure', gone)
  with pytest.raises(ConfigError, match='deleted faster than they can be read'):
    gradients.measure_in_time(Subject('it', CONFIG, 36, run), 'latest', 2)


def test_a_damaged_checkpoint_is_not_taken_for_one_that_was_deleted(run, monkeypatch):
  (run / 'checkpoints/36/manifest.json').write_text('{')
  for asked in ('latest', 'all', '36'):
    with pytest.raises(ConfigError, match=r'manifest.json has changed: look at another --step'):
      looked_at(run, monkeypatch, 36, asked)


def test_a_mistake_of_ours_is_told_as_one(run, monkeypatch):
  def broken(path, like, check):
    raise ZeroDivisionError

  monkeypatch.setattr(checkpoint, 'load', broken)
  with pytest.raises(ZeroDivisionError):
    trained_run.checkpointed_state(CONFIG, run, 36)


def test_whatever_orbax_raises_where_files_are_deleted_under_it(run, monkeypatch):
  def deleted(path, like, check):
    train_on(run, 48)
    raise ValueError('tensorstore: NOT_FOUND')

  monkeypatch.setattr(checkpoint, 'load', deleted)
  with pytest.raises(trained_run.CheckpointDeleted):
    trained_run.checkpointed_state(CONFIG, run, 24)


def test_the_parameters_are_those_of_the_checkpoint(run):
  params = trained_run.checkpointed_state(CONFIG, run, 36).params
  assert {float(leaf.min()) for leaf in jax.tree.leaves(params)} == {36.0}
