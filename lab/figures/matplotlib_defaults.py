"""Makes the first import of matplotlib use its default settings, and ignore the user's matplotlibrc and MPLBACKEND.

A figure must not depend on the user's settings, and the import would fail on an unreadable matplotlibrc, one that is
not UTF-8, or a backend that is not installed.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_CURRENT_FOLDER = os.O_RDONLY | getattr(os, 'O_PATH', 0)  # O_PATH also opens a folder without read permission


def install() -> None:
  """Installs the import hook, unless matplotlib is already imported; then figure_style.styled resets its settings."""
  if 'matplotlib' not in sys.modules:
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
  def find_spec(
    self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
  ) -> ModuleSpec | None:
    if fullname != 'matplotlib' or self not in sys.meta_path:
      return None
    sys.meta_path.remove(self)
    spec = importlib.util.find_spec(fullname)
    if spec is not None and spec.loader is not None and spec.origin is not None:
      spec.loader = _AtDefaults(spec.loader, Path(spec.origin).parent / 'mpl-data')
    return spec


class _AtDefaults(Loader):
  """Loads matplotlib from inside the folder of its default matplotlibrc, because it reads ./matplotlibrc first."""

  def __init__(self, loader: Loader, defaults: Path):
    self._loader, self._defaults = loader, defaults

  def create_module(self, spec: ModuleSpec) -> ModuleType | None:
    return self._loader.create_module(spec)

  def exec_module(self, module: ModuleType) -> None:
    assert module.__spec__ is not None
    module.__spec__.loader = module.__loader__ = self._loader  # the original loader can also open package files
    with _in_folder(self._defaults), _without('MPLBACKEND'):
      self._loader.exec_module(module)


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
  before = os.open(os.curdir, _CURRENT_FOLDER)  # a descriptor, because the folder may have been deleted
  try:
    os.chdir(folder)
    yield
  finally:
    os.fchdir(before)
    os.close(before)


@contextlib.contextmanager
def _without(variable: str) -> Iterator[None]:
  value = os.environ.pop(variable, None)
  try:
    yield
  finally:
    if value is not None:
      os.environ[variable] = value
