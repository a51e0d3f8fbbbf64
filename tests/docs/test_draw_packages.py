"""The drawing of the packages agrees with the imports in the code, and its data flow with the functions."""

import functools
import importlib

import pytest
from test_imports import PROJECT, imported

from docs.draw_packages import ARROWS, FLOW, PACKAGES, PICTURE, picture

CODE = [*PROJECT.glob('*.py'), *(path for name in PACKAGES for path in (PROJECT / name).rglob('*.py'))]


def package_of(path) -> str | None:
  """The name of the box that a file is in; None for lab/__init__.py, whose packages have boxes of their own."""
  parts = path.relative_to(PROJECT).parts
  name = '/'.join(parts[:2] if parts[0] == 'lab' else parts[:1])
  return None if name == 'lab/__init__.py' else name


@functools.cache
def imports() -> frozenset[tuple[str, str]]:
  """(importing package, imported package) of every import between two packages."""
  pairs = {(package_of(path), package_of(file)) for path in CODE for file in imported(path)}
  return frozenset((a, b) for a, b in pairs if a != b and None not in (a, b))


def below(package: str) -> set[str]:
  """Every package that is reached along the arrows."""
  direct = {b for a, b in ARROWS if a == package}
  return direct.union(*map(below, direct))


def test_the_committed_drawing_is_what_the_code_draws():
  assert PICTURE.read_text('utf8') == picture(), 'draw it again: python -m docs.draw_packages'


def test_boxes_are_the_packages_and_commands():
  packages = {path.parent for path in PROJECT.glob('*/__init__.py')} | {
    path.parent for path in (PROJECT / 'lab').glob('*/__init__.py')
  }
  names = {path.relative_to(PROJECT).as_posix() for path in packages} - {'lab'}
  assert set(PACKAGES) == names | {path.name for path in PROJECT.glob('*.py')}


def test_every_arrow_is_an_import():
  assert imports() >= ARROWS


@pytest.mark.parametrize('package', PACKAGES)
def test_every_import_is_along_arrows(package):
  assert {b for a, b in imports() if a == package} <= below(package)


@pytest.mark.parametrize(('stage', 'function'), FLOW)
def test_stages_of_the_data_flow_are_functions(stage, function):
  module, _, name = function.rpartition('.')
  assert callable(getattr(importlib.import_module(module), name)), stage
