import dataclasses
import json
import shutil
from pathlib import Path

import jax
import made_run
import numpy as np
import pytest

from model.config import ModelConfig
from training import resume
from training.config import Config, ConfigError, DataConfig, OptimizerConfig, RunConfig
from training.data.loading import load_data
from training.init_from import check_source
from training.resume import check_start
from training.run_files import run_directory

CONFIG = Config(
  model=ModelConfig(num_layers=1, d_model=8, num_heads=2, d_ff=12),
  data=DataConfig(task='copy', sequence_length=8),
  optimizer=OptimizerConfig(learning_rate=5e-2, warmup_steps=4),
  run=RunConfig(steps=40, batch_size=4),
)
DATA = load_data(CONFIG)
WSD = CONFIG.replace({'optimizer.schedule': 'wsd', 'run.steps': 80})


def start(directory: Path, config: Config = CONFIG):
  return made_run.start(directory, config, DATA)


@pytest.fixture
def run(tmp_path) -> Path:
  return made_run.make_run(tmp_path / 'runs' / 'block' / 'baseline' / 'seed_0', CONFIG, DATA)


def content_of(folder: Path) -> dict[str, bytes]:
  return {str(path): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_a_run_resumes_from_its_newest_checkpoint(run):
  check_start(run, CONFIG, DATA.checksum)
  state, about, resumed_at, notes = start(run)
  assert (resumed_at, notes) == (36, [])
  assert all(np.all(leaf == 36) for leaf in jax.tree.leaves(state))
  assert about['log']['bytes'] == (run / 'metrics.jsonl').stat().st_size
  assert (about['init_from'], about['extended_at']) == (None, [])


def test_a_field_missing_from_a_checkpoint_has_its_default(tmp_path, monkeypatch):
  """The checkpoint of an older version lacks a newer field."""
  identity_and_data = {**run_directory.identity(CONFIG), 'data_checksum': DATA.checksum}
  older = {
    path: value for path, value in identity_and_data.items() if path not in ('model.remat', 'optimizer.accumulate')
  }
  monkeypatch.setattr(resume, '_identity', lambda config, checksum: older)
  run = made_run.make_run(tmp_path, CONFIG, DATA)
  monkeypatch.undo()
  check_start(run, CONFIG, DATA.checksum)
  _, about, resumed_at, notes = start(run)
  assert (resumed_at, notes, about['run']) == (36, [], identity_and_data)
  with pytest.raises(ConfigError, match=r'run \(optimizer\.accumulate is 1 there, 2 here\)'):
    check_start(run, CONFIG.replace({'optimizer.accumulate': 2}), DATA.checksum)


@pytest.mark.parametrize(
  'changes',
  [
    {'model.num_layers': 2},
    {'model.d_model': 16},
    {'model.dtype': 'bfloat16'},
    {'optimizer.name': 'sgd', 'optimizer.clip': 0.5},
    {'data.sequence_length': 4},
    {'data.seed': 5, 'run.init_seed': 5},
    {'run.steps': 39},
  ],
)
def test_a_checkpoint_of_another_run_is_refused_with_all_differences(run, changes):
  """A checkpoint that was copied there; config.json is this run's."""
  other = CONFIG.replace(changes)
  (run / 'config.json').write_text(json.dumps(other.to_flat()))
  before = content_of(run)
  for refuse in (lambda: check_start(run, other, DATA.checksum), lambda: start(run, other)):
    with pytest.raises(ConfigError, match='holds a checkpoint of another run') as error:
      refuse()
    for path, value in changes.items():
      assert f'{path} is {CONFIG.to_flat()[path]!r} there, {value!r} here' in str(error.value)
    assert str(error.value).count(' there, ') == len(changes)
  assert content_of(run) == before


def test_a_checkpoint_of_other_data_is_refused(run):
  with pytest.raises(ConfigError, match=f"data_checksum is '{DATA.checksum}' there, 'other' here"):
    check_start(run, CONFIG, 'other')


def test_a_damaged_log_invalidates_a_checkpoint(run):
  path = run / 'metrics.jsonl'
  path.write_text(path.read_text().replace('36', '37'))
  state, _, resumed_at, notes = start(run)
  assert (resumed_at, int(state.step)) == (24, 24)
  assert notes == [
    f'checkpoint 36 is damaged: {path} has changed in its first {path.stat().st_size} bytes: resumes from step 24'
  ]
  path.unlink()
  with pytest.raises(ConfigError, match='none is intact'):
    check_start(run, CONFIG, DATA.checksum)


def test_extending_reports_the_effect_on_the_schedule(run):
  """A cosine schedule from 0.05 to 10%, with 4 steps of warm-up: at update 36 of 40 and of 80."""

  def rate(steps: int) -> float:
    return 0.05 * (0.1 + 0.9 * (1 + np.cos(np.pi * (36 - 4) / (steps - 4))) / 2)

  _, about, resumed_at, notes = start(run, CONFIG.replace({'run.steps': 80}))
  assert (resumed_at, about['extended_at'], about['run']['run.steps']) == (36, [36], 80)
  (note,) = notes
  assert note.startswith('resumes from step 36 and trains to step 80 instead of 40; from here on the cosine schedule ')
  assert (
    f'the next learning rate is {rate(80):.3g} instead of {rate(40):.3g}. The two schedules agree only up to' in note
  )
  assert note.endswith('up to update 5, so the result is not that of a run of 80 steps from its start')


def test_extending_at_a_constant_rate_is_not_recorded(tmp_path):
  constant = CONFIG.replace({'optimizer.schedule': 'constant'})
  *_, notes = start(made_run.make_run(tmp_path, constant, DATA), constant.replace({'run.steps': 80}))
  assert notes == [
    'resumes from step 36 and trains to step 80 instead of 40; '
    'the learning rate is constant, so this is a run of 80 steps like any other'
  ]


@pytest.mark.parametrize(
  ('changes', 'note'),
  [
    (
      {'optimizer.schedule': 'wsd', 'optimizer.decay_fraction': 0.1},
      '; up to here the wsd schedule of 80 steps has the',
    ),
    (
      {'optimizer.schedule': 'wsd', 'optimizer.decay_fraction': 0.15},
      'The two schedules agree only up to update 35, so',
    ),
    (
      {'optimizer.warmup_steps': 36},
      '; up to here the cosine schedule of 80 steps has the same learning rates, so this',
    ),
  ],
)
def test_extending_before_the_schedule_depends_on_the_steps_is_not_recorded(tmp_path, changes, note):
  """The newest checkpoint is of step 36 of 40: before and after the start of the decay, and in the warm-up."""
  config = CONFIG.replace(changes)
  longer = config.replace({'run.steps': 80})
  run = made_run.make_run(tmp_path, config, DATA)
  _, about, _, (first,) = start(run, longer)
  assert note in first
  assert first.endswith('so this is a run of 80 steps like any other') == ('agree only' not in note)
  assert about['extended_at'] == ([36] if 'agree only' in note else []), 'a report compares it with others'


def test_a_run_extended_before_is_not_called_equal_to_the_longer_run():
  """First in its decay, then in the stable phase of the longer schedule."""
  text = resume._extension_note(WSD, made_run.state_at(36, WSD), 60, extended_at=[30])
  assert text.endswith('has the same learning rates as that of 60, but the run was extended before, at step 30')


def from_run(run: Path, **changes) -> Config:
  return CONFIG.replace({'run.init_from': str(run), 'optimizer.name': 'sgd', 'data.seed': 3, **changes})


def test_a_run_can_start_from_the_parameters_of_another(run, tmp_path):
  config = from_run(run)
  check_start(tmp_path / 'new', config, DATA.checksum)
  state, about, resumed_at, notes = start(tmp_path / 'new', config)
  assert (resumed_at, notes, int(state.step)) == (None, [], 0)
  assert all(np.all(leaf == 36) for leaf in jax.tree.leaves(state.params))
  assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(dataclasses.replace(state, params=None)))
  sha256 = json.loads((run / 'checkpoints' / '36' / 'manifest.json').read_text())['sha256']
  assert about['init_from'] == {'run': str(run), 'step': 36, 'sha256': sha256}
  assert run_directory.identity(config)['run.init_from'] == str(run)


def test_a_resumed_run_does_not_need_its_init_from(run, tmp_path):
  config = CONFIG.replace({'run.init_from': str(run)})
  made_run.make_run(tmp_path / 'new', config, DATA)
  shutil.rmtree(run)
  check_start(tmp_path / 'new', config, DATA.checksum)
  *_, about, resumed_at, _ = start(tmp_path / 'new', config)
  assert (about['init_from']['step'], resumed_at) == (36, 36)


def test_init_from_another_model_is_refused(run, tmp_path):
  config = from_run(run, **{'model.d_model': 16, 'model.connection': 'post'})
  for refuse in (lambda: check_source(config), lambda: start(tmp_path / 'new', config)):
    with pytest.raises(ConfigError) as error:
      refuse()
    assert str(error.value) == (
      f"--init_from={run}: its model differs from this run's (model.d_model is 8 there, 16 here; "
      "model.connection is 'pre' there, 'post' here)"
    )


def test_init_from_checkpoints_of_another_run_is_refused(run, tmp_path):
  """Its config.json was changed."""
  wide = {'model.d_model': 16}
  (run / 'config.json').write_text(json.dumps(CONFIG.replace(wide).to_flat()))
  with pytest.raises(ConfigError, match=r'does not match its checkpoints \(model\.d_model is 8 there, 16 here\)'):
    start(tmp_path / 'new', from_run(run, **wide))


def test_a_missing_or_damaged_init_from_is_named(run, tmp_path):
  with pytest.raises(ConfigError, match=r'nowhere: not a run \(no config\.json\)'):
    check_source(from_run(tmp_path / 'nowhere'))
  (run / 'checkpoints' / '36' / 'state' / '_METADATA').unlink()
  with pytest.raises(ConfigError, match='_METADATA: No such file'):
    start(tmp_path / 'new', from_run(run))
  (run / 'checkpoints').rename(run / 'gone')
  with pytest.raises(ConfigError, match='it has no checkpoint: train it first'):
    check_source(from_run(run))
