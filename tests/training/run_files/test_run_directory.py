import json
import os
from pathlib import Path

import made_result
import pytest

from training.config import Config, ConfigError
from training.files import read_json
from training.run_files import run_directory
from training.run_files.environment import record_environment

NOT_OF_IT = [
  'run.log_every', 'run.evaluations', 'run.evaluation_batches', 'run.final_evaluation_tokens', 'run.checkpoint_every',
  'run.keep_checkpoints', 'inspect.level', 'mesh.data', 'mesh.fsdp',
]  # fmt: skip
OTHER = Config().replace({
  'model.num_layers': 6, 'model.connection': 'post', 'data.seed': 1, 'optimizer.learning_rate': 1e-3,
  'run.steps': 100, 'run.on_nonfinite': 'skip', 'run.log_every': 5,
})  # fmt: skip


@pytest.fixture
def directory(tmp_path) -> Path:
  """The directory of a run of an experiment; not created."""
  return tmp_path / 'runs' / 'block' / 'baseline' / 'seed_0'


def content_of(folder: Path) -> dict[str, bytes]:
  return {str(path): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_inspection_and_logging_are_not_part_of_the_identity():
  flat = Config().to_flat()
  assert run_directory.identity(Config()) == {path: value for path, value in flat.items() if path not in NOT_OF_IT}
  assert set(NOT_OF_IT) < set(flat)


def test_prepare_writes_the_config(directory):
  run_directory.prepare(directory, OTHER)
  assert Config.from_flat(json.loads((directory / 'config.json').read_text())) == OTHER
  assert os.listdir(directory) == ['config.json']


def test_check_writes_nothing(directory, tmp_path):
  run_directory.check(directory, Config())
  assert os.listdir(tmp_path) == []


def test_the_same_run_may_resume_with_other_logging(directory):
  run_directory.prepare(directory, Config())
  looking = {'run.log_every': 7, 'run.evaluations': 3, 'run.evaluation_batches': 1, 'run.checkpoint_every': 9}
  looking |= {'run.keep_checkpoints': 5, 'run.final_evaluation_tokens': 0, 'inspect.level': 'off'}
  looking |= {'mesh.data': 2, 'mesh.fsdp': 2}
  assert set(looking) == set(NOT_OF_IT)
  changed = Config().replace(looking)
  run_directory.check(directory, changed)
  run_directory.prepare(directory, changed)
  assert json.loads((directory / 'config.json').read_text()) == changed.to_flat()


def test_another_run_is_refused_with_the_differences(directory):
  run_directory.prepare(directory, Config())
  before = content_of(directory)
  changed = Config().replace({'optimizer.learning_rate': 1e-3, 'model.connection': 'post', 'run.log_every': 3})
  for use in (run_directory.check, run_directory.prepare):
    with pytest.raises(ConfigError) as error:
      use(directory, changed)
    assert str(error.value) == (
      f"{directory} holds another run (model.connection is 'pre' there, 'post' here; "
      f'optimizer.learning_rate is 0.004 there, 0.001 here): use --workdir={directory.parents[2]}_2 for this run'
    )
  assert content_of(directory) == before


@pytest.mark.parametrize(
  'path', [p for p in Config().to_flat() if p not in NOT_OF_IT and p.startswith('run.') and p != 'run.steps']
)
def test_each_identity_field_of_the_run_section_is_compared(directory, path):
  run_directory.prepare(directory, Config())
  other = {'run.batch_size': 17, 'run.init_seed': 1, 'run.init_from': 'runs/a', 'run.on_nonfinite': 'skip'}[path]
  with pytest.raises(ConfigError, match=rf'\({path} is {Config().to_flat()[path]!r} there, {other!r} here\)'):
    run_directory.check(directory, Config().replace({path: other}))


def test_every_difference_is_named(directory):
  run_directory.prepare(directory, Config())
  with pytest.raises(ConfigError) as error:
    run_directory.check(directory, OTHER)
  assert str(error.value).count(' there, ') == 6
  for path in ('model.num_layers', 'model.connection', 'data.seed', 'optimizer.learning_rate', 'run.steps'):
    assert f'{path} is {Config().to_flat()[path]!r} there, {OTHER.to_flat()[path]!r} here' in str(error.value)


def test_a_field_that_the_stored_config_lacks_counts_as_its_default(directory):
  """The field is newer than the run, which had its default."""
  run_directory.prepare(directory, Config())
  flat = Config().to_flat()
  del flat['model.remat']
  (directory / 'config.json').write_text(json.dumps(flat))
  run_directory.check(directory, Config())
  with pytest.raises(ConfigError, match=r'model\.remat is False there, True here'):
    run_directory.check(directory, Config().replace({'model.remat': True}))


@pytest.mark.parametrize('obstacle', ['runs', 'runs/block', 'runs/block/baseline/seed_0'])
def test_a_file_in_the_way_is_named(directory, tmp_path, obstacle):
  (tmp_path / obstacle).parent.mkdir(parents=True, exist_ok=True)
  (tmp_path / obstacle).write_text('mine')
  with pytest.raises(ConfigError) as error:
    run_directory.prepare(directory, Config())
  assert str(error.value) == (
    f'{tmp_path / obstacle} is a file, where a folder is needed: move it, or choose another --workdir'
  )
  assert content_of(tmp_path) == {str(tmp_path / obstacle): b'mine'}


def test_a_damaged_config_is_not_overwritten(directory):
  directory.mkdir(parents=True)
  (directory / 'config.json').write_text('{"model')
  with pytest.raises(
    ConfigError,
    match=r'config\.json is damaged \(.*\), and no checkpoint identifies .*: move .*seed_0 away',
  ):
    run_directory.prepare(directory, Config())
  assert (directory / 'config.json').read_text() == '{"model'


def test_a_run_is_finished_with_the_result_of_all_its_steps(directory):
  assert not run_directory.is_finished(directory, Config())
  run_directory.prepare(directory, Config())
  assert not run_directory.is_finished(directory, Config())
  made_result.finish(directory)
  assert run_directory.is_finished(directory, Config())
  assert not run_directory.is_finished(directory, Config().replace({'run.steps': 301}))


def test_a_run_can_be_extended_on_request_but_not_shortened(directory):
  run_directory.prepare(directory, Config())
  made_result.finish(directory)
  before, longer = content_of(directory), Config().replace({'run.steps': 900, 'run.log_every': 4})
  remedy = f'use --workdir={directory.parents[2]}_2 for this run'
  with pytest.raises(ConfigError) as error:
    run_directory.check(directory, longer)
  assert str(error.value) == (
    f'{directory} holds a run of 300 steps, and 900 are requested: extend it with --extend, or {remedy}'
  )
  for extend in (False, True):
    with pytest.raises(ConfigError) as error:
      run_directory.check(directory, Config().replace({'run.steps': 200}), extend)
    assert str(error.value) == f'{directory} holds a run of 300 steps, more than the requested 200: {remedy}'
    with pytest.raises(
      ConfigError, match=r'holds another run \(model\.d_model is 64 there, 32 here; run\.steps is 300'
    ):
      run_directory.check(directory, longer.replace({'model.d_model': 32}), extend)
  run_directory.check(directory, longer, extend=True)
  run_directory.extend_steps(directory, Config())
  assert content_of(directory) == before
  run_directory.extend_steps(directory, longer)
  assert not (directory / 'result.json').exists()
  run_directory.check(directory, longer)
  with pytest.raises(ConfigError, match='holds a run of 900 steps, more than the requested 300'):
    run_directory.check(directory, Config())


@pytest.mark.parametrize('name', ['result.json', 'metrics.jsonl', 'checkpoints'])
def test_an_unidentified_run_is_not_overwritten(directory, name):
  directory.mkdir(parents=True)
  (directory / name).mkdir() if name == 'checkpoints' else (directory / name).touch()
  with pytest.raises(
    ConfigError,
    match=f'holds the {name} of a run, but no config.json, and no checkpoint identifies',
  ):
    run_directory.check(directory, Config())


def test_the_workdir_of_a_run():
  assert run_directory.workdir_of(Path('runs/block/baseline/seed_0')) == Path('runs')
  assert run_directory.workdir_of(Path('runs/block/tuning/baseline/lr_0.001/seed_100')) == Path('runs')
  assert run_directory.workdir_of(Path('alone')) == Path('alone')


@pytest.mark.parametrize('workdir', ['tuning', '/a/tuning', '/a/block/tuning', 'tuning/tuning', 'lr_1/tuning'])
def test_a_workdir_may_be_named_tuning(workdir):
  for below in ('block/baseline/seed_0', 'block/tuning/baseline/lr_0.001/seed_100', 'lr_1/lr/seed_0',
                'block/tuning/lr_2/lr_1e-05_warmup_20/seed_100'):  # fmt: skip
    assert run_directory.workdir_of(Path(workdir) / below) == Path(workdir)


def test_a_changed_text_is_noticed(tmp_path):
  run_directory.check_data(tmp_path, 'one')
  record_environment(tmp_path, 'one', resumed=False)
  run_directory.check_data(tmp_path, 'one')
  with pytest.raises(ConfigError, match='trained on a different text'):
    run_directory.check_data(tmp_path, 'two')


def test_a_failure_is_recorded_until_the_run_starts_again(directory):
  run_directory.record_failure(directory, run_directory.FailureRecord('out of memory'))
  assert read_json(directory / 'failure.json') == {'error': 'out of memory', 'log_start': 0}
  run_directory.prepare(directory, OTHER)
  assert os.listdir(directory) == ['config.json']


def test_an_unwritable_directory_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr('os.access', lambda path, mode: path != tmp_path)
  with pytest.raises(ConfigError, match=f'{tmp_path} is not writable: choose another --workdir'):
    run_directory.check(tmp_path / 'runs' / 'block', OTHER)
