"""Each question to the inspector has a folder, and what an older answer left there goes with it."""

import json
from pathlib import Path

import pytest

from lab.core.names import SAFE_NAME
from lab.inspect import gradient_files
from training.config import Config
from training.files import write_json


def answer(*names: str):
  """Writes files of these names, and the index of them."""

  def write(folder: Path) -> list[Path]:
    for name in names:
      (folder / name).write_text(f'{names}')
    write_json(folder / 'gradients.json', {'files': [*names, 'gradients.json']})
    return [folder / name for name in (*names, 'gradients.json')]

  return write


def there(folder: Path) -> set[str]:
  return {path.name for path in folder.iterdir()}


def test_files_of_the_last_answer_go_and_others_stay(tmp_path):
  folder = tmp_path / 'answer'
  assert gradient_files.replace_files(folder, answer('a.csv', 'b.png'))[0] == folder / 'a.csv'
  (folder / 'notes.txt').write_text('mine')
  gradient_files.replace_files(folder, answer('a.csv', 'c.svg'))
  assert there(folder) == {'a.csv', 'c.svg', 'gradients.json', 'notes.txt'}
  assert (folder / 'a.csv').read_text() == "('a.csv', 'c.svg')"


def test_what_fails_leaves_the_last_answer_whole(tmp_path):
  gradient_files.replace_files(tmp_path, answer('a.csv', 'b.png'))
  before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

  def full(folder):
    answer('a.csv')(folder)
    raise OSError(28, 'No space left on device')

  with pytest.raises(OSError, match='No space'):
    gradient_files.replace_files(tmp_path, full)
  assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_index_deletes_nothing_outside_its_folder(tmp_path):
  folder, outside = tmp_path / 'answer', tmp_path / 'outside.csv'
  outside.write_text('mine')
  folder.mkdir()
  (folder / 'mine.txt').write_text('mine')
  (folder / 'gradients.json').write_text(
    json.dumps({'files': ['../outside.csv', str(outside), '..', 'mine.txt', 3, None, '.']})
  )
  gradient_files.replace_files(folder, answer('a.csv'))
  assert outside.exists()
  assert there(folder) == {'a.csv', 'gradients.json', 'mine.txt'}


def test_every_question_has_a_name_of_its_own(tmp_path):
  runs = [tmp_path / f'runs/block/{variant}/seed_0' for variant in ('baseline', 'post_norm')]
  others = [tmp_path / f'others/block/{variant}/seed_0' for variant in ('baseline', 'post_norm')]
  names = ['baseline', 'post_norm']
  deep, wide = Config().replace({'model.num_layers': 4}), Config().replace({'model.d_model': 128})
  questions = [
    gradient_files.question_of_runs(names, runs, 'latest'),
    gradient_files.question_of_runs(names, runs, '300'),
    gradient_files.question_of_runs(names, others, 'latest'),
    gradient_files.question_of_runs(names[::-1], runs[::-1], 'latest'),
    gradient_files.question_of_config('tiny', '', [deep]),
    gradient_files.question_of_config('tiny', '', [deep, Config()]),
    gradient_files.question_of_config('tiny', 'd_model=128', [wide]),
    gradient_files.question_of_config('mine', 'd_model=128', [wide.replace({'model.num_heads': 2})]),
  ]
  assert len(set(questions)) == len(questions)
  assert questions[0].startswith('baseline+post_norm_step_latest-')
  assert questions[5].startswith('tiny_layers_4_12-')
  assert all(SAFE_NAME.fullmatch(question) for question in questions)
