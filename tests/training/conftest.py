"""Fixtures for tests that train."""

import functools
from pathlib import Path

import pytest
from quick_runs import EASY, QUICK, train

from training import programs


@functools.cache
def compiled_programs() -> dict:
  """Programs by their text: several files of tests train the same runs."""
  return {}


@pytest.fixture(scope='module')
def quick_programs():
  """Compiles without optimisation; yields the names of the compiled functions."""
  names: list[str] = []

  def compile_quickly(function, *arguments):
    names.append(function.__name__)
    lowered, compiled = function.lower(*arguments), compiled_programs()
    text = lowered.as_text()
    if text not in compiled:
      compiled[text] = lowered.compile(compiler_options=QUICK)
    return compiled[text]

  programs._compile.cache_clear()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(programs, 'compile_with_cache', compile_quickly)
    yield names
  programs._compile.cache_clear()


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
  """A folder with the text that most tests train on."""
  path = tmp_path_factory.mktemp('data')
  (path / 'text.txt').write_bytes(EASY)
  return path


@pytest.fixture
def in_folder(folder, monkeypatch):
  monkeypatch.chdir(folder)


@pytest.fixture(scope='module')
def finished(folder, tmp_path_factory):
  """An uninterrupted run: (its directory, its result, its reports)."""
  directory = tmp_path_factory.mktemp('finished') / 'seed_0'
  reports: list[dict] = []
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    result = train(directory, report=reports.append)
  return directory, result, reports
