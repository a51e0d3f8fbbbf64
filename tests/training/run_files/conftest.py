from pathlib import Path

import pytest

from training.run_files import locks


@pytest.fixture
def directory(tmp_path) -> Path:
  """The directory of a run; not created."""
  return tmp_path / 'runs' / 'block' / 'baseline' / 'seed_0'


@pytest.fixture
def no_patience(monkeypatch):
  """A run that another process trains is refused at once."""
  monkeypatch.setattr(locks, 'RELEASE_WITHIN', 0.0)
