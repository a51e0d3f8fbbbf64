"""Output directories of the inspector: names, and files that replace those written before."""

import json
from pathlib import Path

import pytest

from lab.core.names import SAFE_NAME
from lab.inspect import gradient_files
from training.config import Config
from training.files import write_json


def writer(*names: str):
  """A function that writes files with these names and their index."""

  def write(folder: Path) -> list[Path]:
    for name in names:
      (folder / name).write_text(f'{names}')
    write_json(folder / 'gradients.json', {'files': [*names, 'gradients.json']})
    return [folder / name for name in (*names, 'gradients.json')]

  return write


def names_in(folder: Path) -> set[str]:
  return {path.name for path in folder.iterdir()}


def test_previous_files_are_deleted_and_others_kept(tmp_path):
  folder = tmp_path / 'output'
  assert gradient_files.replace_files(folder, writer('a.csv', 'b.png'))[0] == folder / 'a.csv'
  (folder / 'notes.txt').write_text('mine')
  gradient_files.replace_files(folder, writer('a.csv', 'c.svg'))
  assert names_in(folder) == {'a.csv', 'c.svg', 'gradients.json', 'notes.txt'}
  assert (folder / 'a.csv').read_text() == "('a.csv', 'c.svg')"


def test_a_failed_write_keeps_the_previous_files(tmp_path):
  gradient_files.replace_files(tmp_path, writer('a.csv', 'b.png'))
  before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

  def fail(folder):
    writer('a.csv')(folder)
    raise OSError(28, 'No space left on device')

  with pytest.raises(OSError, match='No space'):
    gradient_files.replace_files(tmp_path, fail)
  assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_index_cannot_delete_files_outside_its_directory(tmp_path):
  folder, outside = tmp_path / 'output', tmp_path / 'outside.csv'
  outside.write_text('mine')
  folder.mkdir()
  (folder / 'mine.txt').write_text('mine')
  (folder / 'gradients.json').write_text(
    json.dumps({'files': ['../outside.csv', str(outside), '..', 'mine.txt', 3, None, '.']})
  )
  gradient_files.replace_files(folder, writer('a.csv'))
  assert outside.exists()
  assert names_in(folder) == {'a.csv', 'gradients.json', 'mine.txt'}


def test_directory_names_are_distinct(tmp_path):
  runs = [tmp_path / f'runs/block/{variant}/seed_0' for variant in ('baseline', 'post_norm')]
  others = [tmp_path / f'others/block/{variant}/seed_0' for variant in ('baseline', 'post_norm')]
  names = ['baseline', 'post_norm']
  deep, wide = Config().replace({'model.num_layers': 4}), Config().replace({'model.d_model': 128})
  directory_names = [
    gradient_files.directory_name_for_runs(names, runs, 'latest'),
    gradient_files.directory_name_for_runs(names, runs, '300'),
    gradient_files.directory_name_for_runs(names, others, 'latest'),
    gradient_files.directory_name_for_runs(names[::-1], runs[::-1], 'latest'),
    gradient_files.directory_name_for_config('tiny', '', [deep]),
    gradient_files.directory_name_for_config('tiny', '', [deep, Config()]),
    gradient_files.directory_name_for_config('tiny', 'd_model=128', [wide]),
    gradient_files.directory_name_for_config('mine', 'd_model=128', [wide.replace({'model.num_heads': 2})]),
  ]
  assert len(set(directory_names)) == len(directory_names)
  assert directory_names[0].startswith('baseline+post_norm_step_latest-')
  assert directory_names[5].startswith('tiny_layers_4_12-')
  assert all(SAFE_NAME.fullmatch(name) for name in directory_names)
