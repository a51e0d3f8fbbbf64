"""Imports go one way: from what a person types down to the model, through the rooms of lab/ in one order."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
ROOMS = {  # each may import from those before it alone; the two in the middle do not know of one another
  'cli': 1, 'core': 2, 'launch': 3, 'analysis': 3, 'figures': 4, 'report': 5, 'commands': 6,
  'reproduce': 7, 'inspect': 7, 'benchmark': 7,
}  # fmt: skip
MAY_IMPORT = {
  'model': set(),
  'training': {'model'},
  'configs': {'training', 'model'},
  'lab': {'configs', 'training', 'model'},
  'experiments': {'lab', 'training', 'model'},
}
FLOORS = 8


def modules(folder: str) -> list[Path]:
  return sorted((PROJECT / folder).rglob('*.py'))


def imported(path: Path) -> Iterator[Path]:
  """The files of the project that a file imports anywhere in it, also inside a function or under TYPE_CHECKING."""
  for node in ast.walk(ast.parse(path.read_text('utf8'))):
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
      names = [f'{node.module}.{alias.name}' for alias in node.names] + [node.module]
    elif isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    else:
      continue
    for name in names:
      place = PROJECT / name.replace('.', '/')
      for file in (place.with_suffix('.py'), place / '__init__.py'):
        if file.is_file():
          yield file


@pytest.mark.parametrize('folder', MAY_IMPORT)
def test_folders_import_in_one_direction(folder):
  for path in modules(folder):
    reached = {file.relative_to(PROJECT).parts[0] for file in imported(path)} - {folder}
    assert reached <= MAY_IMPORT[folder], path


def test_rooms_of_lab_import_in_one_direction():
  assert {path.name for path in (PROJECT / 'lab').iterdir() if (path / '__init__.py').exists()} == set(ROOMS)
  for room, floor in ROOMS.items():
    for path in modules(f'lab/{room}'):
      for file in imported(path):
        parts = file.relative_to(PROJECT).parts
        if parts[0] == 'lab' and len(parts) == 3 and parts[1] != room:
          assert ROOMS[parts[1]] < floor, f'{path} imports {file}'


def test_no_chain_of_imports_in_lab_is_longer_than_its_floors():
  files = {path for path in modules('lab') if path.name != '__init__.py'}

  @functools.cache
  def floor(path: Path) -> int:
    return 1 + max((floor(file) for file in imported(path) if file in files and file != path), default=0)

  assert max(map(floor, files)) == FLOORS


def test_each_room_says_what_enters_and_what_leaves():
  for room in ROOMS:
    docstring = ast.get_docstring(ast.parse((PROJECT / 'lab' / room / '__init__.py').read_text('utf8'))) or ''
    first, _, last = docstring.partition('\n\n')
    assert (first[:4], last[:5]) == ('In: ', 'Out: '), room


@pytest.mark.parametrize(
  ('old', 'new'),
  [
    ('experiments.reproduce', 'python reproduce.py'),
    ('experiments.inspect_gradients', 'python inspect_gradients.py'),
    ('experiments.benchmark', 'python -m lab.benchmark'),
  ],
)
def test_a_command_that_moved_says_where(old, new):
  ended = subprocess.run([sys.executable, '-m', old, '--help'], cwd=PROJECT, capture_output=True, text=True)
  assert (ended.returncode, ended.stdout, ended.stderr) == (2, '', f'{old} has moved: {new}\n')
