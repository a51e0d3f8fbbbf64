import dataclasses
import hashlib
import itertools
import json
import os

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from training import cache
from training.config import ConfigError, DataConfig
from training.data import corpus

BLOCK = 16384


def config_of(tmp_path, text: bytes, **settings) -> DataConfig:
  path = tmp_path / 'text.txt'
  path.write_bytes(text)
  return DataConfig(task='files', paths=str(path), **settings)


def random_text(num_bytes: int) -> bytes:
  return np.random.default_rng(0).integers(32, 127, num_bytes, np.uint8).tobytes()


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
  """An empty cache."""
  monkeypatch.setenv('BLOCKLAB_CACHE', str(tmp_path / 'cache'))
  return tmp_path / 'cache'


@given(st.integers(20 * BLOCK, 70 * BLOCK) | st.integers(20, 70).map(lambda blocks: blocks * BLOCK))
def test_every_byte_belongs_to_the_split_of_its_block(num_bytes):
  names = ['train'] * 9 + ['validation'] + ['train'] * 9 + ['test']
  spans = corpus.split_text(num_bytes)
  assert (spans[0].start, spans[-1].stop) == (0, num_bytes)
  for span in spans:
    blocks = np.unique(np.arange(span.start, span.stop, 512) // BLOCK)
    assert {names[block % 20] for block in blocks} == {span.split}
    assert span.start % BLOCK == 0
  for one, other in itertools.pairwise(spans):
    assert one.stop == other.start
    assert one.split != other.split


@pytest.mark.parametrize(
  ('num_bytes', 'bounds'), [(1, (1, 1)), (100, (90, 95)), (119, (108, 114)), (20 * BLOCK - 1, (294912, 311296))]
)
def test_a_short_text_ends_in_validation_and_test(num_bytes, bounds):
  spans = corpus.split_text(num_bytes)
  assert spans == [('train', 0, bounds[0]), ('validation', *bounds), ('test', bounds[1], num_bytes)]
  assert {span.split for span in corpus.split_text(20 * BLOCK)} == {'train', 'validation', 'test'}


def test_bytes_are_the_tokens(tmp_path):
  text = bytes(range(32, 256)) * 4
  loaded = corpus.load_corpus(config_of(tmp_path, text))
  assert loaded.tokens.tobytes() == text
  assert (loaded.vocab_size, loaded.tokens.dtype) == (256, np.uint8)
  assert loaded.bytes_per_token('validation') == 1.0
  assert loaded.of('test') == [('test', 852, 896, 43)]
  assert loaded.checksum == '9de4f9a8ea3733c40955afa3e8ed4f6bbd94f3a5ab3fb9ae54bf02989c68b7d5'


def test_the_second_load_maps_what_the_first_wrote(tmp_path, cache_folder, monkeypatch):
  config = config_of(tmp_path, random_text(30 * BLOCK))
  first = corpus.load_corpus(config)
  monkeypatch.setattr(corpus, 'encode_text', None)  # called again, it would fail
  second = corpus.load_corpus(config)
  bases = [second.tokens]
  while getattr(bases[-1], 'base', None) is not None:
    bases.append(bases[-1].base)
  assert any(isinstance(base, np.memmap) for base in bases)
  assert not second.tokens.flags.writeable
  np.testing.assert_array_equal(first.tokens, second.tokens)
  assert (first.segments, first.checksum) == (second.segments, second.checksum)
  assert [path.name for path in cache_folder.rglob('*.bin')] == [f'{first.checksum}.bin']


def flip(content: bytes, place: int) -> bytes:
  return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


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
    lambda content: json.dumps({'format': corpus.FORMAT}).encode(),
    lambda content: b'[]\n',
    lambda content: b'\xff' * 100,
  ],
)
def test_a_damaged_cache_is_made_anew(tmp_path, cache_folder, damage):
  text = random_text(1000)
  config = config_of(tmp_path, text)
  corpus.load_corpus(config)
  (path,) = cache_folder.rglob('*.bin')
  whole = path.read_bytes()
  path.write_bytes(damage(whole))
  assert corpus.load_corpus(config).tokens.tobytes() == text
  assert path.read_bytes() == whole


def test_without_a_cache_folder_it_works_in_memory_and_says_so_once(tmp_path, monkeypatch):
  (tmp_path / 'file').touch()
  monkeypatch.setenv('BLOCKLAB_CACHE', str(tmp_path / 'file'))
  warnings = []
  monkeypatch.setattr(cache.logging, 'warning', lambda message, *args: warnings.append(message % args))
  text = random_text(1000)
  assert corpus.load_corpus(config_of(tmp_path, text)).tokens.tobytes() == text
  assert len(warnings) == 1
  assert 'in memory' in warnings[0]


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
  def refuse(source, target):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'replace', refuse)
  monkeypatch.setattr(cache.logging, 'warning', lambda *args: None)
  assert not cache.write_whole(tmp_path / 'made' / 'file', b'content')
  assert list((tmp_path / 'made').iterdir()) == []


def test_the_cache_is_the_users_own_by_default(monkeypatch):
  monkeypatch.delenv('BLOCKLAB_CACHE')
  assert cache.cache_directory().name == 'blocklab'


@pytest.fixture
def tokenizer(tmp_path):
  """A small byte-level BPE; its file is set to cut texts short and to start them with a mark, which must not happen."""
  made = tokenizers.Tokenizer(tokenizers.models.BPE())
  made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = tokenizers.decoders.ByteLevel()
  alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
  made.train_from_iterator([SENTENCE], trainer)
  made.enable_truncation(8)
  made.post_processor = tokenizers.processors.TemplateProcessing(single='! $A', special_tokens=[('!', 0)])
  made.save(str(tmp_path / 'tokenizer.json'))
  return made


SENTENCE = 'the quick brown fox jumps over the naïve dog; the dog sleeps on. '


def test_a_tokenizer_reads_each_split_alone(tmp_path, tokenizer):
  text = (SENTENCE * 5500).encode()
  loaded = corpus.load_corpus(config_of(tmp_path, text, tokenizer=str(tmp_path / 'tokenizer.json')))
  assert (loaded.vocab_size, loaded.tokens.dtype) == (tokenizer.get_vocab_size(), np.uint16)
  spans = corpus.split_text(len(text))
  assert [segment.split for segment in loaded.segments] == [span.split for span in spans]
  for segment, span in zip(loaded.segments, spans, strict=True):
    ids = loaded.tokens[segment.start : segment.stop].tolist()
    piece = text[span.start : span.stop].decode('utf-8', 'replace')
    assert tokenizer.decode(ids) == piece
    first = tokenizer.decode(ids[:1])  # whole characters here: the sentence is ASCII but for one
    assert segment.scored_bytes == span.stop - span.start - len(first.encode())
  scored = [(s.scored_bytes, s.stop - s.start - 1) for s in loaded.segments if s.split == 'test']
  assert loaded.bytes_per_token('test') == sum(b for b, _ in scored) / sum(t for _, t in scored) > 1.5


def test_the_tokenizer_is_part_of_the_identity(tmp_path, tokenizer):
  text = SENTENCE.encode() * 50
  path = tmp_path / 'tokenizer.json'
  plain = corpus.load_corpus(config_of(tmp_path, text))
  first = corpus.load_corpus(config_of(tmp_path, text, tokenizer=str(path)))
  path.write_bytes(path.read_bytes() + b'\n')
  second = corpus.load_corpus(config_of(tmp_path, text, tokenizer=str(path)))
  assert len({plain.checksum, first.checksum, second.checksum}) == 3
  assert {made.text_checksum for made in (plain, first, second)} == {hashlib.sha256(text).hexdigest()}


def test_a_tokenizer_that_does_not_know_a_word_is_refused(tmp_path):
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel({'[UNK]': 0, 'in': 1, 'the': 2}, unk_token='[UNK]'))
  made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  made.save(str(tmp_path / 'words.json'))
  (tmp_path / 'text.txt').write_text('in the in the beginning ' * 50)
  config = DataConfig(task='files', paths=str(tmp_path / 'text.txt'), tokenizer=str(tmp_path / 'words.json'))
  with pytest.raises(ConfigError, match=r"words\.json does not keep the text: 'beginning "):
    corpus.load_corpus(config)


def test_a_character_belongs_to_one_split_where_a_tokenizer_reads_it(tmp_path, tokenizer):
  """Each 16 KiB end inside a character of three bytes: its rest would reach the tokenizer as another character."""
  text = ('€' * 120_000).encode()
  config = config_of(tmp_path, text, tokenizer=str(tmp_path / 'tokenizer.json'))
  loaded = corpus.load_corpus(config)
  spans = corpus.at_characters(corpus.split_text(len(text)), text)
  assert [(span.start % 3, span.stop % 3) for span in spans] == [(0, 0)] * len(spans)
  for segment, span in zip(loaded.segments, spans, strict=True):
    ids = loaded.tokens[segment.start : segment.stop].tolist()
    assert tokenizer.decode(ids) == text[span.start : span.stop].decode()
    assert segment.scored_bytes == span.stop - span.start - len(tokenizer.id_to_token(ids[0]))
  moved = [abs(one.stop - other.stop) for one, other in zip(spans, corpus.split_text(len(text)), strict=True)]
  assert 0 < max(moved) < 3


def test_what_takes_long_is_announced(tmp_path, tokenizer, monkeypatch):
  notes = []
  monkeypatch.setattr(corpus.logging, 'warning', lambda message, *values: notes.append(message % values))
  monkeypatch.setattr(corpus, 'LONG', 3000)
  config = config_of(tmp_path, b'ab' * 1500, tokenizer=str(tmp_path / 'tokenizer.json'))
  for _ in range(2):
    corpus.load_corpus(config)
  corpus.load_corpus(config_of(tmp_path, b'ab' * 1500))
  assert notes == [f'encoding 0 MB of text with {tmp_path}/tokenizer.json, once: the tokens are cached']


def test_what_was_encoded_unchecked_is_encoded_anew(tmp_path, cache_folder, tokenizer):
  """A tokenizer of an older version may have left out what it did not know."""
  config = config_of(tmp_path, SENTENCE.encode() * 50, tokenizer=str(tmp_path / 'tokenizer.json'))
  right = corpus.load_corpus(config).tokens
  (path,) = cache_folder.rglob('*.bin')
  older = dataclasses.replace(corpus.load_corpus(config), tokens=right[::2].copy())
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(corpus, 'FORMAT', 1)
    corpus.write_tokens(path, older)
  np.testing.assert_array_equal(corpus.load_corpus(config).tokens, right)
