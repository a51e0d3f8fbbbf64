"""Every module, function, field and file that the documentation names exists."""

import re
from pathlib import Path

import pytest
from documented_names import resolves

from training.config import known_paths

PROJECT = Path(__file__).parents[2]
PAGES = [page for page in (*PROJECT.glob('*.md'), *(PROJECT / 'docs').glob('*.md')) if page.name != 'CHANGELOG.md']
NEW = {'experiments/shallow.py'}  # examples of files that a user adds
FOLDERS = '(?:model|training|lab|configs|experiments|docs|tests)'
NAME = re.compile(rf'`({FOLDERS}(?:\.\w+)+)(?:\([^`]*\))?`')
FILE = re.compile(rf'`({FOLDERS}/[\w./]*)`')
NAME_IN_FILE = re.compile(rf'`(\w+)` (?:in |\()`({FOLDERS}/[\w./]+\.py)`')


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_names_exist(page):
  names = set(NAME.findall(page.read_text('utf8')))
  fields = {field for path in known_paths() for field in (path, path.partition('.')[0])}
  assert sorted(name for name in names if name not in fields and not resolves(name)) == []


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_files_exist(page):
  named = set(FILE.findall(page.read_text('utf8')))
  assert {name for name in named if not (PROJECT / name).exists()} <= NEW


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_names_are_in_the_files_named(page):
  for name, file in NAME_IN_FILE.findall(page.read_text('utf8')):
    assert re.search(rf'\b{name}\b', (PROJECT / file).read_text('utf8')), f'{name} in {file}'


def test_identifiers_in_the_guide_are_in_the_code():
  """CONTRIBUTING.md names functions, constants and arguments without their modules."""
  named = set(re.findall(r'`(\w*[A-Z_]\w*)`', (PROJECT / 'CONTRIBUTING.md').read_text('utf8')))
  folders = ('model', 'training', 'lab', 'configs', 'experiments', 'tests')
  code = '\n'.join(path.read_text('utf8') for folder in folders for path in (PROJECT / folder).rglob('*.py'))
  assert sorted(named - set(re.findall(r'\w+', code))) == []


def test_new_names_in_the_changelog_exist():
  rows = re.findall(r'^ *\| `.*` \| (.*) \|$', (PROJECT / 'CHANGELOG.md').read_text('utf8'), re.MULTILINE)
  names = {name for cell in rows for name in NAME.findall(cell)}
  assert len(names) >= 4
  assert sorted(name for name in names if not resolves(name)) == []
