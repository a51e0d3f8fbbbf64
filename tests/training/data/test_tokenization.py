import hashlib

import numpy as np
import pytest
import tokenizers

from training.config import ConfigError, DataConfig
from training.data import tokenization
from training.data.splits import align_to_characters, split_text

SENTENCE = 'the quick brown fox jumps over the naïve dog; the dog sleeps on. '


def config_with(tmp_path, text: bytes, **settings) -> DataConfig:
  path = tmp_path / 'text.txt'
  path.write_bytes(text)
  return DataConfig(task='files', paths=str(path), **settings)


@pytest.fixture
def tokenizer(tmp_path):
  """A small byte-level BPE, whose file also enables truncation and a prefix token, which must have no effect."""
  bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
  bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  bpe.decoder = tokenizers.decoders.ByteLevel()
  alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
  bpe.train_from_iterator([SENTENCE], trainer)
  bpe.enable_truncation(8)
  bpe.post_processor = tokenizers.processors.TemplateProcessing(single='! $A', special_tokens=[('!', 0)])
  bpe.save(str(tmp_path / 'tokenizer.json'))
  return bpe


def test_without_a_tokenizer_bytes_are_the_tokens(tmp_path):
  text = bytes(range(32, 256)) * 4
  loaded = tokenization.load_corpus(config_with(tmp_path, text))
  assert loaded.tokens.tobytes() == text
  assert (loaded.vocab_size, loaded.tokens.dtype) == (256, np.uint8)
  assert loaded.bytes_per_token('validation') == 1.0
  assert loaded.segments_of('test') == [('test', 852, 896, 43)]
  assert loaded.checksum == '9de4f9a8ea3733c40955afa3e8ed4f6bbd94f3a5ab3fb9ae54bf02989c68b7d5'


def test_a_tokenizer_encodes_each_split_separately(tmp_path, tokenizer):
  text = (SENTENCE * 5500).encode()
  loaded = tokenization.load_corpus(config_with(tmp_path, text, tokenizer=str(tmp_path / 'tokenizer.json')))
  assert (loaded.vocab_size, loaded.tokens.dtype) == (tokenizer.get_vocab_size(), np.uint16)
  spans = split_text(len(text))
  assert [segment.split for segment in loaded.segments] == [span.split for span in spans]
  for segment, span in zip(loaded.segments, spans, strict=True):
    ids = loaded.tokens[segment.start : segment.stop].tolist()
    piece = text[span.start : span.stop].decode('utf-8', 'replace')
    assert tokenizer.decode(ids) == piece
    first = tokenizer.decode(ids[:1])  # whole characters: the sentence is ASCII except for one character
    assert segment.scored_bytes == span.stop - span.start - len(first.encode())
  scored = [(s.scored_bytes, s.stop - s.start - 1) for s in loaded.segments if s.split == 'test']
  assert loaded.bytes_per_token('test') == sum(b for b, _ in scored) / sum(t for _, t in scored) > 1.5


def test_the_checksum_includes_the_tokenizer(tmp_path, tokenizer):
  text = SENTENCE.encode() * 50
  path = tmp_path / 'tokenizer.json'
  plain = tokenization.load_corpus(config_with(tmp_path, text))
  first = tokenization.load_corpus(config_with(tmp_path, text, tokenizer=str(path)))
  path.write_bytes(path.read_bytes() + b'\n')
  second = tokenization.load_corpus(config_with(tmp_path, text, tokenizer=str(path)))
  assert len({plain.checksum, first.checksum, second.checksum}) == 3
  assert {corpus.text_checksum for corpus in (plain, first, second)} == {hashlib.sha256(text).hexdigest()}


def test_a_tokenizer_without_a_token_for_a_word_is_refused(tmp_path):
  word_level = tokenizers.Tokenizer(tokenizers.models.WordLevel({'[UNK]': 0, 'in': 1, 'the': 2}, unk_token='[UNK]'))
  word_level.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  word_level.save(str(tmp_path / 'words.json'))
  config = config_with(tmp_path, b'in the in the beginning ' * 50, tokenizer=str(tmp_path / 'words.json'))
  with pytest.raises(ConfigError, match=r"words\.json is not lossless: 'beginning "):
    tokenization.load_corpus(config)


def test_with_a_tokenizer_no_character_is_split(tmp_path, tokenizer):
  """Blocks of 16 KiB end inside a character of three bytes: the tokenizer would get its rest as another character."""
  text = ('€' * 120_000).encode()
  config = config_with(tmp_path, text, tokenizer=str(tmp_path / 'tokenizer.json'))
  loaded = tokenization.load_corpus(config)
  spans = align_to_characters(split_text(len(text)), text)
  assert [(span.start % 3, span.stop % 3) for span in spans] == [(0, 0)] * len(spans)
  for segment, span in zip(loaded.segments, spans, strict=True):
    ids = loaded.tokens[segment.start : segment.stop].tolist()
    assert tokenizer.decode(ids) == text[span.start : span.stop].decode()
    assert segment.scored_bytes == span.stop - span.start - len(tokenizer.id_to_token(ids[0]))
  distances = [abs(one.stop - other.stop) for one, other in zip(spans, split_text(len(text)), strict=True)]
  assert 0 < max(distances) < 3


def test_a_slow_tokenization_is_logged_once(tmp_path, tokenizer, monkeypatch):
  warnings = []
  monkeypatch.setattr(tokenization.logging, 'warning', lambda message, *values: warnings.append(message % values))
  monkeypatch.setattr(tokenization, 'LONG', 3000)
  config = config_with(tmp_path, b'ab' * 1500, tokenizer=str(tmp_path / 'tokenizer.json'))
  for _ in range(2):
    tokenization.load_corpus(config)
  tokenization.load_corpus(config_with(tmp_path, b'ab' * 1500))
  assert warnings == [f'tokenizing 0 MB of text with {tmp_path}/tokenizer.json; the tokens are cached for later runs']
