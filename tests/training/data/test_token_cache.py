import dataclasses
import json

import numpy as np
import pytest

from training import cache
from training.config import DataConfig
from training.data import token_cache, tokenization

TEXT = np.random.default_rng(0).integers(32, 127, 500_000, np.uint8).tobytes()


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
  """An empty cache."""
  monkeypatch.setenv('BLOCKLAB_CACHE', str(tmp_path / 'cache'))
  return tmp_path / 'cache'


def config_with(tmp_path, text: bytes) -> DataConfig:
  path = tmp_path / 'text.txt'
  path.write_bytes(text)
  return DataConfig(task='files', paths=str(path))


def test_the_second_load_maps_the_file_that_the_first_wrote(tmp_path, cache_folder, monkeypatch):
  config = config_with(tmp_path, TEXT)
  first = tokenization.load_corpus(config)
  monkeypatch.setattr(tokenization, 'encode_text', None)  # a second call would fail
  second = tokenization.load_corpus(config)
  bases = [second.tokens]
  while getattr(bases[-1], 'base', None) is not None:
    bases.append(bases[-1].base)
  assert any(isinstance(base, np.memmap) for base in bases)
  assert not second.tokens.flags.writeable
  np.testing.assert_array_equal(first.tokens, second.tokens)
  assert (first.segments, first.checksum) == (second.segments, second.checksum)
  assert [path.name for path in cache_folder.rglob('*.bin')] == [f'{first.checksum}.bin']


def flip(content: bytes, offset: int) -> bytes:
  return content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :]


@pytest.mark.parametrize(
  'damage',
  [
    lambda content: b'',
    lambda content: content[:-1],
    lambda content: content[:20],
    lambda content: content + b'x',
    lambda content: flip(content, 5),
    lambda content: flip(content, content.index(b'uint8')),
    lambda content: flip(content, len(content) - 100),
    lambda content: flip(content, len(content) - 1),
    lambda content: json.dumps({'format': token_cache.FORMAT}).encode(),
    lambda content: b'[]\n',
    lambda content: b'\xff' * 100,
  ],
)
def test_a_damaged_file_is_replaced(tmp_path, cache_folder, damage):
  config = config_with(tmp_path, TEXT[:1000])
  tokenization.load_corpus(config)
  (path,) = cache_folder.rglob('*.bin')
  intact = path.read_bytes()
  path.write_bytes(damage(intact))
  assert tokenization.load_corpus(config).tokens.tobytes() == TEXT[:1000]
  assert path.read_bytes() == intact


def test_a_file_of_an_older_format_is_replaced(tmp_path, cache_folder, monkeypatch):
  """An older version may have dropped characters that the tokenizer does not know."""
  config = config_with(tmp_path, TEXT[:1000])
  corpus = tokenization.load_corpus(config)
  (path,) = cache_folder.rglob('*.bin')
  older = dataclasses.replace(corpus, tokens=corpus.tokens[::2].copy())
  with monkeypatch.context() as patch:
    patch.setattr(token_cache, 'FORMAT', 1)
    token_cache.write_corpus(path, older)
  np.testing.assert_array_equal(tokenization.load_corpus(config).tokens, corpus.tokens)


def test_without_a_writable_cache_one_warning_is_logged(tmp_path, monkeypatch):
  (tmp_path / 'file').touch()
  monkeypatch.setenv('BLOCKLAB_CACHE', str(tmp_path / 'file'))
  warnings = []
  monkeypatch.setattr(cache.logging, 'warning', lambda message, *args: warnings.append(message % args))
  assert tokenization.load_corpus(config_with(tmp_path, TEXT[:1000])).tokens.tobytes() == TEXT[:1000]
  assert len(warnings) == 1
  assert 'in memory' in warnings[0]
