"""Fixtures of all tests: a private cache, the current folder of a command, and one format of figures."""

import gzip
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest


def pytest_make_parametrize_id(config, val, argname):
  """Names bytes by their argument: gzip and zip contain the time, so their content would differ between workers."""
  return argname if isinstance(val, bytes) else None


@pytest.fixture(scope='session', autouse=True)
def private_cache(tmp_path_factory):
  """Isolates the tests from the cache of the user who runs them."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('BLOCKLAB_CACHE', str(tmp_path_factory.mktemp('cache')))
    yield


@pytest.fixture
def user_folder(monkeypatch):
  """The current folder of a command, writable by all, with files that a user might pass to it by mistake."""
  folder = Path(tempfile.mkdtemp())
  folder.chmod(0o777)
  monkeypatch.chdir(folder)
  (folder / 'empty.txt').touch()
  (folder / 'short.txt').write_text('In the beginning')
  (folder / 'folder').mkdir()
  (folder / 'cut.txt.gz').write_bytes(gzip.compress(b'In the beginning' * 1000)[:-9])
  (folder / 'noise.jsonl').write_bytes(bytes(range(256)) * 9)
  (folder / 'noise.txt').write_bytes(bytes(range(256)) * 9)
  (folder / 'gigantic.jsonl').write_text('[' * 5_000_000)
  (folder / 'other.jsonl').write_text(json.dumps({'content': 'In the beginning'}))
  (folder / 'raises.py').write_text('def get_config():\n  return 1 / 0\n')
  (folder / 'nothing.py').write_text('x = 1\n')
  (folder / 'typo.py').write_text('def get_config(:\n')
  yield folder
  shutil.rmtree(folder)


@pytest.fixture
def unprivileged():
  """Drops the privileges of root, whom file permissions do not restrict."""
  if os.geteuid() == 0:
    os.setresuid(65534, 65534, 0)
    yield
    os.setresuid(0, 0, 0)
  else:
    yield


@pytest.fixture
def svg_only(monkeypatch):
  """Saves figures only as SVG, for tests that are not about figures."""
  from lab.figures import figure_style  # matplotlib takes a second to import

  monkeypatch.setattr(figure_style, 'FORMATS', {'svg': figure_style.FORMATS['svg']})


@pytest.fixture
def own_parts():
  """Removes the parts that files of the test have registered."""
  from model.registry import REGISTRIES
  from training import ideas

  yield
  for registry in REGISTRIES:
    for file in {registry.origin(name) for name in registry} - {None}:
      registry.remove(file)
  ideas._loaded.clear()
