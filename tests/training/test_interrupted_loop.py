"""Runs that are stopped, killed or damaged, and resume."""

import contextlib
import json
import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from full_disk import limited_file_size
from quick_runs import (
  CONFIG,
  EVALUATED,
  LOGGED,
  Stop,
  assert_same_run,
  content_of,
  final_state,
  rows_of,
  stop_at,
  train,
)

from training import loop
from training.config import ConfigError
from training.files import SaveFailed, read_json
from training.run_files import run_directory
from training.run_files.checkpoint import Checkpoints, steps_in
from training.run_files.metrics_log import MetricsLog

pytestmark = pytest.mark.usefixtures('quick_programs', 'in_folder')


@pytest.mark.parametrize(
  ('step', 'resumed_at'),
  [(1, None), (30, 24), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((15, 12), (40, 36)))],
)
def test_a_stopped_run_resumes_to_the_bit(finished, tmp_path, step, resumed_at):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(step))
  assert not (tmp_path / 'result.json').exists()
  assert [row['step'] for row in rows_of(tmp_path)] == [s for s in sorted({*LOGGED, *EVALUATED}) if s < step]
  result = train(tmp_path)
  assert result['resumed_at'] == resumed_at
  assert_same_run(tmp_path, finished[0])


def test_a_run_can_be_stopped_repeatedly(finished, tmp_path):
  for step in (15, 15, 30, 40):
    with pytest.raises(Stop):
      train(tmp_path, report=stop_at(step))
  assert train(tmp_path)['resumed_at'] == 36
  assert_same_run(tmp_path, finished[0])


@pytest.mark.parametrize('function', ['validate', 'result_of', 'write_result'])
def test_a_run_can_be_killed_in_validation_evaluation_and_saving(finished, tmp_path, monkeypatch, function):
  def stop(*args):
    raise Stop

  with monkeypatch.context() as patch:
    patch.setattr(loop, function, stop)
    with pytest.raises(Stop):
      train(tmp_path)
  result = train(tmp_path)
  assert result['resumed_at'] == (None if function == 'validate' else 40)
  assert_same_run(tmp_path, finished[0])


@pytest.mark.parametrize(
  'step', [20, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 17, 24, 40))]
)  # 20 has an evaluation, 24 a checkpoint, 40 is the last
def test_a_run_that_is_asked_to_stop_saves_its_step(finished, tmp_path, step):
  earlier = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
  calls: list[int] = []
  before = 1 + (step - 1) + sum(evaluated < step for evaluated in EVALUATED)  # at the start, per step, per batch
  with pytest.raises(loop.Stopped):
    train(tmp_path, stop=lambda: len(calls) == before or calls.append(1))
  assert steps_in(tmp_path / 'checkpoints')[0] == step
  assert not (tmp_path / 'result.json').exists()
  logged = [s for s in sorted({*LOGGED, *EVALUATED}) if s <= step]
  if step in EVALUATED:  # its row is logged after its evaluation
    logged.remove(step)
  assert [row['step'] for row in rows_of(tmp_path)] == logged
  assert train(tmp_path)['resumed_at'] == step
  assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == earlier
  assert_same_run(tmp_path, finished[0])


def test_a_run_that_is_asked_to_stop_before_its_first_step_stops(tmp_path):
  with pytest.raises(loop.Stopped):
    train(tmp_path, stop=lambda: True)
  assert not (tmp_path / 'metrics.jsonl').exists()


def test_the_log_is_on_the_disk_before_a_save_starts(tmp_path, monkeypatch):
  """All lines up to the step of the checkpoint."""
  happened = []
  sync, save = MetricsLog.sync, Checkpoints.save

  def synced(self):
    mark = sync(self)
    happened.append(('on disk', [row['step'] for row in rows_of(tmp_path)][-1]))
    return mark

  def saved(self, state, about):
    assert about['log']['bytes'] == (tmp_path / 'metrics.jsonl').stat().st_size
    happened.append(('saved', int(state.step)))
    save(self, state, about)

  monkeypatch.setattr(MetricsLog, 'sync', synced)
  monkeypatch.setattr(Checkpoints, 'save', saved)
  train(tmp_path)
  assert happened == [
    ('on disk', 10), ('saved', 12), ('on disk', 20), ('saved', 24), ('on disk', 30), ('saved', 36), ('on disk', 40),
    ('saved', 40),
  ]  # fmt: skip


def flip(path: Path) -> None:
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(finished, tmp_path):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(40))
  assert steps_in(tmp_path / 'checkpoints') == [36, 24]
  largest = max((tmp_path / 'checkpoints' / '36').rglob('*'), key=lambda path: path.stat().st_size)
  flip(largest)
  reports: list[dict] = []
  assert train(tmp_path, report=reports.append)['resumed_at'] == 24
  assert [report['note'] for report in reports if 'note' in report] == [
    f'checkpoint 36 is damaged: {largest} has changed: resumes from step 24'
  ]
  assert_same_run(tmp_path, finished[0])


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(tmp_path):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(40))
  for step in (24, 36):
    flip(tmp_path / 'checkpoints' / str(step) / 'state' / '_METADATA')
  before = content_of(tmp_path)
  with pytest.raises(ConfigError, match=rf'none is intact; restore the files, or move {tmp_path} away to train'):
    train(tmp_path)
  assert {path: content for path, content in content_of(tmp_path).items() if 'lock' not in path} == {
    path: content for path, content in before.items() if 'lock' not in path
  }


@pytest.mark.parametrize('row', [-1, 1, 0])
def test_a_damaged_log_is_written_again_from_an_earlier_checkpoint(finished, tmp_path, row):
  """Rows of steps 1, 10, 15, 20, 30; checkpoints of 24 and 36, with 4 and 5 of them."""
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(40))
  path = tmp_path / 'metrics.jsonl'
  lines = path.read_bytes().splitlines(keepends=True)
  lines[row] = lines[row].replace(b'"train/loss": ', b'"train/loss": 1').replace(b'"validation/loss": ', b'')
  path.write_bytes(b''.join(lines))
  if row == -1:
    assert train(tmp_path)['resumed_at'] == 24
    assert_same_run(tmp_path, finished[0])
  else:
    with pytest.raises(ConfigError, match=r'metrics\.jsonl has changed in its first \d+ bytes: none is intact'):
      train(tmp_path)


@pytest.mark.slow
def test_extending_at_a_constant_rate_equals_the_longer_run(tmp_path):
  long = CONFIG.replace({'optimizer.schedule': 'constant'})
  short = long.replace({'run.steps': 24})
  train(tmp_path / 'long', long)
  assert train(tmp_path / 'extended', short)['extended_at'] == []
  run_directory.extend_steps(tmp_path / 'extended', long)
  result = train(tmp_path / 'extended', long)
  assert (result['resumed_at'], result['extended_at'], result['steps']) == (24, [24], 40)
  for a, b in zip(
    jax.tree.leaves(final_state(tmp_path / 'long', long)),
    jax.tree.leaves(final_state(tmp_path / 'extended', long)),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)  # the programs may round differently


@pytest.mark.filterwarnings('ignore')  # Orbax leaves coroutines behind when it fails
@pytest.mark.parametrize('what', ['checkpoint', 'log'])
def test_a_full_disk_ends_a_run_without_damage(finished, tmp_path, what):
  """The disk is full at the save after step 24, or at the line of step 20; the checkpoint of step 12 is intact."""
  lines = (finished[0] / 'metrics.jsonl').read_bytes().splitlines(keepends=True)
  largest = max(path.stat().st_size for path in (finished[0] / 'checkpoints' / '36').rglob('*'))
  log_at_24 = len(b''.join(lines[:4]))
  assert log_at_24 < largest - 1
  size, message = {
    'checkpoint': (
      largest - 1,
      r'/24 could not be written \(.*File too large.*\): earlier saves are',
    ),
    'log': (log_at_24 - 10, 'File too large'),
  }[what]
  with contextlib.ExitStack() as full:

    def report(progress):
      if progress.get('step') == 15:
        while steps_in(tmp_path / 'checkpoints') != [12]:  # still being written
          pass
        full.enter_context(limited_file_size(size))

    with pytest.raises(SaveFailed if what == 'checkpoint' else OSError, match=message):
      train(tmp_path, report=report)
  assert not (tmp_path / 'result.json').exists()
  assert train(tmp_path)['resumed_at'] == 12
  assert_same_run(tmp_path, finished[0])


def test_an_unfinished_line_and_an_unfinished_save_are_dropped(finished, tmp_path):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(30))
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 30, "train/lo')
  (tmp_path / 'checkpoints' / '36.saving').mkdir()
  assert train(tmp_path)['resumed_at'] == 24
  assert_same_run(tmp_path, finished[0])


@pytest.mark.slow
def test_logging_settings_may_change_on_resume(finished, tmp_path):
  logging = {'run.evaluations': 8, 'run.checkpoint_every': 7, 'run.keep_checkpoints': 1, 'run.log_every': 4}
  other = CONFIG.replace({**logging, 'inspect.level': 'off'})
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(30))
  assert train(tmp_path, other)['resumed_at'] == 24
  assert [row['step'] for row in rows_of(tmp_path)] == [1, 10, 15, 20, 25, 28, 30, 32, 35, 36, 40]
  stored = json.loads((tmp_path / 'config.json').read_text())
  assert stored == other.to_flat()
  for a, b in zip(jax.tree.leaves(final_state(tmp_path)), jax.tree.leaves(final_state(finished[0])), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_resuming_in_another_environment_gives_a_note(finished, tmp_path):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(30))
  path = tmp_path / 'environment.json'
  path.write_text(json.dumps((read_json(path) or {}) | {'layout': '8 tpu device(s), 96 core(s)'}))
  reports: list[dict] = []
  train(tmp_path, report=reports.append)
  (note,) = (report['note'] for report in reports if 'note' in report)
  assert 'its numbers may differ (layout was 8 tpu device(s), 96 core(s), is' in note
  assert_same_run(tmp_path, finished[0])


def test_another_run_is_refused_and_nothing_is_written(finished):
  directory = finished[0]
  before = content_of(directory)
  with pytest.raises(ConfigError, match=r'run\.steps is 40 there, 41 here; run\.init_seed is 0 there, 3 here') as error:
    train(directory, CONFIG.replace({'run.steps': 41, 'run.init_seed': 3}))
  assert '\n' not in str(error.value)
  assert content_of(directory) == before


def test_unsuitable_data_are_refused_before_anything_is_written(tmp_path):
  with pytest.raises(
    ConfigError, match=r'^model\.vocab_size=255 is too small for the data, whose vocabulary has 256 tokens'
  ):
    train(tmp_path / 'run', CONFIG.replace({'model.vocab_size': 255}))
  with pytest.raises(ConfigError, match=r'too few for a batch of 1000'):
    train(tmp_path / 'run', CONFIG.replace({'run.batch_size': 1000}))
  assert os.listdir(tmp_path) == []


def test_a_file_in_the_way_is_named(tmp_path):
  (tmp_path / 'runs').write_text('mine')
  with pytest.raises(ConfigError, match=rf'^{tmp_path}/runs is a file, where a folder is needed'):
    train(tmp_path / 'runs' / 'seed_0')
  assert (tmp_path / 'runs').read_text() == 'mine'
