"""Reading the files of finished runs."""

import csv
import dataclasses
import hashlib
import json

import fake_runs
import made_result
import pytest

from lab.analysis import results
from training import files
from training.config import ConfigError


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('runs')
  fake_runs.write_experiment(workdir / 'block', statuses={('relu', 1): 'diverged'}, points=4)
  other = dataclasses.replace(fake_runs.BLOCK, name='other')
  fake_runs.write_experiment(workdir / 'other', other, {'baseline': 3.5}, points=4, changes={'data.task': 'copy'})
  return workdir


@pytest.mark.parametrize(
  ('below', 'runs'), [('', 25), ('block', 20), ('block/relu', 5), ('block/relu/seed_3', 1), ('other', 5)]
)
def test_load_takes_any_directory_of_runs(workdir, below, runs):
  frame = results.load(workdir / below)
  assert len(frame) == runs
  assert (frame['status'] == 'completed').any()


def test_load_returns_one_typed_row_per_run(workdir):
  frame = results.load(workdir)
  assert tuple(frame.columns[: len(results.COLUMNS)]) == results.COLUMNS
  assert frame.columns[-1] == 'directory'
  row = frame[(frame.experiment == 'block') & (frame.variant == 'relu')].iloc[1]
  on_disk = json.loads((workdir / 'block/relu/seed_1/result.json').read_text())
  assert row['directory'] == str(workdir / 'block/relu/seed_1')
  assert (row['seed'], row['status'], row['diverged_at']) == (1, 'diverged', on_disk['diverged_at'])
  assert row['val_bits_per_byte'] == on_disk['val_bits_per_byte']
  assert frame['val_bits_per_byte'].isna().sum() == 5  # the other experiment's task has no bytes
  assert row['versions'] == on_disk['versions']
  assert frame['val_loss'].dtype == 'float64'
  assert frame['diverged_at'].isna().sum() == len(frame) - 1


def test_write_csv_has_the_documented_columns(workdir, tmp_path):
  path = results.write_csv(results.load(workdir / 'block'), tmp_path / 'results.csv')
  with path.open() as file:
    rows = list(csv.DictReader(file))
  assert tuple(rows[0]) == results.COLUMNS
  by_run = {(row['variant'], row['seed']): row for row in rows}
  assert len(by_run) == 20
  assert by_run['relu', '1']['diverged_at'] == '120'  # a whole number
  assert by_run['relu', '0']['diverged_at'] == ''
  assert [file.name for file in tmp_path.iterdir()] == ['results.csv']


def test_an_empty_or_missing_directory_is_named(tmp_path):
  """The message does not suggest training there: the path may be misspelt, or that of an experiment or a run."""
  for directory, text in (
    (tmp_path, f'{tmp_path} has no finished run'),
    (tmp_path / 'nowhere', f'there is no directory {tmp_path}/nowhere'),
  ):
    with pytest.raises(ConfigError) as error:
      results.load(directory)
    assert str(error.value) == text


def test_a_damaged_result_is_named(tmp_path):
  fake_runs.write_experiment(tmp_path / 'block', levels={'baseline': 3.0}, points=4)
  path = tmp_path / 'block/baseline/seed_2/result.json'
  path.write_text(path.read_text()[:40])
  with pytest.raises(ConfigError, match=r'seed_2/result\.json is damaged'):
    results.load(tmp_path)


def test_load_metrics(tmp_path):
  (tmp_path / 'metrics.jsonl').write_text('{"step": 1, "a": 2}\n{"step": 2, "a": null, "b": 0.5}\n')
  frame = results.load_metrics(tmp_path)
  assert frame.index.name == 'step'
  assert frame['a'].tolist()[0] == 2.0
  assert frame.isna().sum().to_dict() == {'a': 1, 'b': 1}
  assert frame.dtypes.unique().tolist() == ['float64']


@pytest.mark.parametrize('cut', ['{"step": 2, "a"', '{"st', '\0\0\0', '{"step": 2}'])
def test_an_incomplete_last_line_is_left_out(tmp_path, cut):
  (tmp_path / 'metrics.jsonl').write_text('{"step": 1, "a": 1}\n' + cut)
  assert results.load_metrics(tmp_path).index.tolist() == [1]


def test_an_empty_log_is_an_empty_table(tmp_path):
  (tmp_path / 'metrics.jsonl').write_text('')
  assert results.load_metrics(tmp_path).empty


def test_missing_metrics_and_other_damaged_lines_are_an_error(tmp_path):
  with pytest.raises(ConfigError, match=r'no .*metrics\.jsonl'):
    results.load_metrics(tmp_path)
  for damaged in ('{"step": 1}\n{"a": 1}\n{"step": 3}\n', '{"step": 1}\n{"st\n'):
    (tmp_path / 'metrics.jsonl').write_text(damaged)
    with pytest.raises(ConfigError, match=r'metrics\.jsonl, line 2'):
      results.load_metrics(tmp_path)


def test_a_log_that_changed_after_its_run_ended_is_an_error(tmp_path):
  log = tmp_path / 'metrics.jsonl'
  log.write_text('{"step": 1, "validation/loss": 2.5}\n')
  mark = {'bytes': log.stat().st_size, 'sha256': hashlib.sha256(log.read_bytes()).hexdigest()}
  made_result.finish(tmp_path, log=mark)
  assert results.load_metrics(tmp_path)['validation/loss'].tolist() == [2.5]
  for changed in ('{"step": 1, "validation/loss": 1.5}\n', log.read_text() * 2, ''):
    log.write_text(changed)
    for load in (results.load_metrics, results.load_positions):
      with pytest.raises(ConfigError, match=r'metrics\.jsonl is damaged \(it has changed since'):
        load(tmp_path)


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
  path = files.write_atomically(tmp_path / 'page.html', 'old')
  monkeypatch.setattr('os.replace', lambda *_: (_ for _ in ()).throw(OSError('disk')))
  with pytest.raises(OSError, match='disk'):
    files.write_atomically(path, 'new')
  assert path.read_text() == 'old'


def test_lists_are_loaded_separately_from_numbers(tmp_path):
  rows = [
    {'step': 1, 'train/loss': 2.0, 'stream_gradient_by_position/block_00/attention/total': [1.0, 2.5]},
    {'step': 10, 'train/loss': 1.0, 'stream_gradient_by_position/block_00/attention/total': [0.5, None]},
  ]
  (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  assert list(results.load_metrics(tmp_path).columns) == ['train/loss']
  positions = results.load_positions(tmp_path)
  assert positions.loc[(1, 'stream_gradient_by_position/block_00/attention/total')].tolist() == [1.0, 2.5]
  assert positions.loc[10].isna().to_numpy().tolist() == [[False, True]]


def test_a_run_without_metrics_by_position_is_an_error(tmp_path):
  (tmp_path / 'metrics.jsonl').write_text('{"step": 1, "train/loss": 2.0}\n')
  with pytest.raises(ConfigError, match=r'inspect\.level=full'):
    results.load_positions(tmp_path)


def test_the_columns_of_results_csv():
  assert results.COLUMNS == (
    'experiment', 'variant', 'seed', 'status', 'steps', 'tokens', 'parameters', 'flops_per_token', 'learning_rate',
    'val_loss', 'val_bits_per_byte', 'test_bits_per_byte', 'seconds', 'tokens_per_second', 'diverged_at',
  )  # fmt: skip
