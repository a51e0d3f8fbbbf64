"""Files of a finished run that changed afterwards are rewritten with a note if possible, otherwise left unchanged."""

import json
import shutil
from pathlib import Path

import pytest
from quick_runs import CONFIG, assert_same_run, content_of, rows_of, train

from training.config import ConfigError
from training.resume import check_start
from training.run_files import run_directory
from training.run_files.stored_run import data_checksum, read_config, recorded_provenance

pytestmark = pytest.mark.usefixtures('quick_programs', 'in_folder')


def change(path: Path, **fields) -> None:
  """Changes values, but not the checksum."""
  path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def change_a_digit(path: Path, after: bytes) -> None:
  content = path.read_bytes()
  offset = len(content.rpartition(after)[0]) + len(after)
  while not chr(content[offset]).isdigit():
    offset += 1
  path.write_bytes(content[:offset] + str((content[offset] - 47) % 10).encode() + content[offset + 1 :])


def intact_files(run: Path) -> dict[str, bytes]:
  return {name: content for name, content in content_of(run).items() if 'checkpoints' in name or 'result' in name}


def add_a_line(run: Path) -> None:
  path = run / 'metrics.jsonl'
  path.write_text(path.read_text() + '{"step": 40, "validation/loss": 0.1}\n')


CHANGES = {
  'a loss': lambda run: change_a_digit(run / 'result.json', b'"val_loss": '),
  'a status': lambda run: change(run / 'result.json', status='diverged'),
  'steps': lambda run: change(run / 'result.json', steps=41),
  'another type': lambda run: change(run / 'result.json', val_loss='1.0'),
  'NaN': lambda run: change(run / 'result.json', val_loss=float('nan')),
  'half of it': lambda run: (run / 'result.json').write_text((run / 'result.json').read_text()[:99]),
  'empty': lambda run: (run / 'result.json').write_text(''),
  'zeros': lambda run: (run / 'result.json').write_bytes(bytes(500)),
  'no object': lambda run: (run / 'result.json').write_text('{}'),
  'no text': lambda run: (run / 'result.json').write_bytes(b'\xff\xfe'),
  'deep': lambda run: (run / 'result.json').write_text('{"a":' * 50_000),
  'a seed in its config': lambda run: change(run / 'config.json', **{'data.seed': 7}),
  'a rate in its config': lambda run: change_a_digit(run / 'config.json', b'"optimizer.learning_rate": '),
  'its config': lambda run: (run / 'config.json').write_text('{"model'),
  'no config': lambda run: (run / 'config.json').unlink(),
  'a line more': add_a_line,
}


@pytest.mark.parametrize('what', CHANGES)
def test_a_damaged_result_is_written_again_without_training_and_with_a_note(what, finished, tmp_path):
  run, notes = tmp_path / 'seed_0', []
  shutil.copytree(finished[0], run)
  assert run_directory.is_finished(run, CONFIG)
  CHANGES[what](run)
  assert not run_directory.is_finished(run, CONFIG)
  run_directory.check(run, CONFIG)
  train(run, report=notes.append)
  assert run_directory.is_finished(run, CONFIG)
  assert_same_run(run, finished[0])
  assert read_config(run) == CONFIG.to_flat()
  messages = [report['note'] for report in notes if 'note' in report]
  assert not [report for report in notes if 'step' in report]  # no step was trained
  assert len(messages) == (what != 'no config')
  assert all('json' in note and note.endswith(': resumes from the last intact checkpoint') for note in messages)


@pytest.mark.parametrize('line', [3, -1])
def test_a_changed_log_is_written_again_from_an_earlier_checkpoint(finished, tmp_path, line):
  """A changed digit of a logged loss; of the checkpoints of steps 36 and 40, the first precedes the last line."""
  run, notes = tmp_path / 'seed_0', []
  shutil.copytree(finished[0], run)
  path = run / 'metrics.jsonl'
  lines = path.read_bytes().splitlines(keepends=True)
  lines[line] = lines[line].replace(b'"validation/loss": 1', b'"validation/loss": 2').replace(b'loss": 0', b'loss": 9')
  path.write_bytes(b''.join(lines))
  assert not run_directory.is_finished(run, CONFIG)
  if line == 3:
    before = intact_files(run)
    with pytest.raises(ConfigError, match=r'none is intact; restore the files, or move .*seed_0 away to train'):
      train(run)
    assert intact_files(run) == before
  else:
    assert train(run, report=notes.append)['resumed_at'] == 36
    assert_same_run(run, finished[0])
    assert 'metrics.jsonl is damaged (it has changed since the run ended)' in next(
      report['note'] for report in notes if 'note' in report
    )
    assert rows_of(run) == rows_of(finished[0])


def test_a_damaged_run_without_a_checkpoint_is_not_overwritten(finished, tmp_path):
  run = tmp_path / 'seed_0'
  shutil.copytree(finished[0], run, ignore=shutil.ignore_patterns('checkpoints'))
  assert run_directory.is_finished(run, CONFIG)
  change_a_digit(run / 'result.json', b'"val_loss": ')
  before = content_of(run)
  message = r'result\.json is damaged .*, and there is no checkpoint to resume it from: move .*seed_0 away to train it'
  checksum = finished[1]['data_checksum']
  for start in (lambda: check_start(run, CONFIG, checksum), lambda: train(run)):
    with pytest.raises(ConfigError, match=message) as error:
      start()
    assert '\n' not in str(error.value)
  assert {name: content_of(run)[name] for name in before if 'metrics' in name or 'result' in name} == {
    name: content for name, content in before.items() if 'metrics' in name or 'result' in name
  }


@pytest.mark.slow
def test_a_result_is_kept_until_it_is_replaced(finished, tmp_path):
  """Another subset is evaluated from the last checkpoint; without a checkpoint the result is kept."""
  run, other = tmp_path / 'seed_0', CONFIG.replace({'run.final_evaluation_tokens': 64})
  shutil.copytree(finished[0], run, ignore=shutil.ignore_patterns('checkpoints'))
  assert not run_directory.is_finished(run, other)
  result = (run / 'result.json').read_bytes()
  with pytest.raises(ConfigError, match='holds the result of a run, and there is no checkpoint to resume it from'):
    train(run, other)
  assert (run / 'result.json').read_bytes() == result
  assert rows_of(run) == rows_of(finished[0])
  shutil.copytree(finished[0] / 'checkpoints', run / 'checkpoints', dirs_exist_ok=True)
  assert train(run, other)['final_evaluation_tokens'] == 64
  assert run_directory.is_finished(run, other)


@pytest.mark.parametrize('content', [b'', b'{"data_checksum": "x"', b'[]', b'\xff', b'{"a": NaN}'])
def test_a_damaged_environment_is_rewritten_with_a_note(finished, tmp_path, content):
  run, notes = tmp_path / 'seed_0', []
  shutil.copytree(finished[0], run)
  (run / 'environment.json').write_bytes(content)
  assert run_directory.is_finished(run, CONFIG)  # environment.json is not needed for that
  assert data_checksum(run) == finished[1]['data_checksum']
  (run / 'result.json').unlink()
  run_directory.check_data(run, finished[1]['data_checksum'])
  train(run, report=notes.append)
  (note,) = (report['note'] for report in notes if 'note' in report)
  assert 'environment.json was damaged and is rewritten' in note
  assert json.loads((run / 'environment.json').read_text())['data_checksum'] == finished[1]['data_checksum']


def test_the_data_checksum_of_a_run_is_read_from_its_result(finished, tmp_path):
  """Whatever its environment.json contains."""
  run = tmp_path / 'seed_0'
  shutil.copytree(finished[0], run)
  (run / 'environment.json').write_text('{"data_checksum": "another"}')
  run_directory.check_data(run, finished[1]['data_checksum'])
  with pytest.raises(ConfigError, match='was trained on a different text'):
    run_directory.check_data(run, 'another')


def test_the_code_version_of_a_run_is_read_from_its_result_or_environment(finished, tmp_path):
  run, code = tmp_path / 'seed_0', finished[1]['code']
  shutil.copytree(finished[0], run)
  assert recorded_provenance(run)['code'] == code
  (run / 'result.json').unlink()
  assert recorded_provenance(run)['code'] == code
  (run / 'environment.json').write_text('{')
  assert recorded_provenance(run) == {}
  assert recorded_provenance(tmp_path / 'nowhere') == {}


def test_a_damaged_failure_file_is_reported(tmp_path):
  assert run_directory.read_failure(tmp_path) is None
  run_directory.record_failure(tmp_path, run_directory.FailureRecord('out of memory', 7))
  assert run_directory.read_failure(tmp_path) == ('out of memory', 7)
  change(tmp_path / 'failure.json', error='all is well')
  assert 'failure.json is damaged' in run_directory.read_failure(tmp_path).error
