"""Packages import in one direction: from the commands down to the model, and within lab/ in a fixed order."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
LAB_LEVELS = {  # package of lab/ -> its level; a package imports only from packages of lower levels
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
LONGEST_CHAIN = 8  # of modules in lab/, each imported by the next


def modules(folder: str) -> list[Path]:
  return sorted((PROJECT / folder).rglob('*.py'))


def imported(path: Path) -> Iterator[Path]:
  """Yields the files of the project that a file imports, also inside functions and under TYPE_CHECKING."""
  for node in ast.walk(ast.parse(path.read_text('utf8'))):
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
      names = [f'{node.module}.{alias.name}' for alias in node.names] + [node.module]
    elif isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    else:
      continue
    for name in names:
      path = PROJECT / name.replace('.', '/')
      for file in (path.with_suffix('.py'), path / '__init__.py'):
        if file.is_file():
          yield file


@pytest.mark.parametrize('folder', MAY_IMPORT)
def test_packages_import_in_one_direction(folder):
  for path in modules(folder):
    reached = {file.relative_to(PROJECT).parts[0] for file in imported(path)} - {folder}
    assert reached <= MAY_IMPORT[folder], path


def test_packages_of_lab_import_in_one_direction():
  assert {path.name for path in (PROJECT / 'lab').iterdir() if (path / '__init__.py').exists()} == set(LAB_LEVELS)
  for package, level in LAB_LEVELS.items():
    for path in modules(f'lab/{package}'):
      for file in imported(path):
        parts = file.relative_to(PROJECT).parts
        if parts[0] == 'lab' and len(parts) == 3 and parts[1] != package:
          assert LAB_LEVELS[parts[1]] < level, f'{path} imports {file}'


def test_the_longest_chain_of_imports_in_lab():
  files = {path for path in modules('lab') if path.name != '__init__.py'}

  @functools.cache
  def chain_length(path: Path) -> int:
    return 1 + max((chain_length(file) for file in imported(path) if file in files and file != path), default=0)

  assert max(map(chain_length, files)) == LONGEST_CHAIN


def test_each_package_of_lab_documents_its_inputs_and_outputs():
  for package in LAB_LEVELS:
    docstring = ast.get_docstring(ast.parse((PROJECT / 'lab' / package / '__init__.py').read_text('utf8'))) or ''
    first, _, last = docstring.partition('\n\n')
    assert (first[:4], last[:5]) == ('In: ', 'Out: '), package


@pytest.mark.parametrize(
  ('old', 'new'),
  [
    ('experiments.reproduce', 'python reproduce.py'),
    ('experiments.inspect_gradients', 'python inspect_gradients.py'),
    ('experiments.benchmark', 'python -m lab.benchmark'),
  ],
)
def test_a_moved_command_prints_its_new_name(old, new):
  ended = subprocess.run([sys.executable, '-m', old, '--help'], cwd=PROJECT, capture_output=True, text=True)
  assert (ended.returncode, ended.stdout, ended.stderr) == (2, '', f'{old} has moved: {new}\n')
