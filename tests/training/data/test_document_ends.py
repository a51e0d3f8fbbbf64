"""An end token replaces the newline between documents, and is scored as one byte."""

import itertools
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from training.config import ConfigError, DataConfig
from training.data import batches, loading, tokenization
from training.data.corpus import Segment
from training.data.splits import split_text
from training.data.tokenizer import CheckedTokenizer, Encoder, byte_encoder
from training.data.windows import Windows

TEXTS = st.lists(st.text('ab\n', max_size=30).map(str.encode), min_size=1, max_size=60)


def config_with(folder, *texts: bytes, **fields) -> DataConfig:
  for number, text in enumerate(texts):
    (folder / f'{number:04}.txt').write_bytes(text)
  return DataConfig(task='files', paths=f'{folder}/*.txt', **fields)


def byte_level() -> tokenizers.Tokenizer:
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=260, initial_alphabet=alphabet, special_tokens=['<end>'], show_progress=False
  )
  tokenizer.train_from_iterator(['abab'], trainer)
  return tokenizer


ENCODERS = {
  'bytes': lambda: byte_encoder('end'),
  'tokenizer': lambda: Encoder(CheckedTokenizer('t.json', byte_level()).encode, 260, 'x', 0, needs_characters=True),
}


@pytest.mark.parametrize('kind', ENCODERS)
@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_end_tokens_are_where_documents_end(kind, documents):
  encoder, text = ENCODERS[kind](), b'\n'.join(documents)
  ends = tokenization.document_ends(documents)
  corpus = tokenization.encode_text(text, encoder, 'x', ends)
  names = {token: name for name, token in byte_level().get_vocab().items()}

  def bytes_of(token: int) -> bytes:
    if kind == 'bytes':
      return bytes([token])
    return names[token].replace('Ċ', '\n').encode()

  tokens = corpus.tokens.tolist()
  assert tokens.count(encoder.end_id) == len(documents) - 1
  pieces = b''.join(b'\0' if token == encoder.end_id else bytes_of(token) for token in tokens)
  assert pieces.split(b'\0') == documents
  for segment, span in zip(corpus.segments, split_text(len(text)), strict=True):
    scored = tokens[segment.start + 1 : segment.stop]
    assert segment.scored_bytes == sum(1 if token == encoder.end_id else len(bytes_of(token)) for token in scored)
    assert span.split == segment.split


def test_segments_and_their_bytes_are_the_same_as_without_end_tokens(tmp_path):
  texts = [bytes([97 + k]) * length for k, length in enumerate([700, 1, 300, 999, 16384, 40])]
  plain = tokenization.load_corpus(config_with(tmp_path, *texts))
  marked = tokenization.load_corpus(config_with(tmp_path, *texts, end_token='end'))
  assert marked.segments == plain.segments
  assert (marked.vocab_size, marked.end_id, plain.end_id) == (257, 256, None)
  assert np.flatnonzero(marked.tokens == 256).tolist() == [700, 702, 1003, 2003, 18388]
  np.testing.assert_array_equal(np.where(marked.tokens == 256, 10, marked.tokens), plain.tokens)


def test_the_books_of_the_bible_are_documents():
  plain, marked = tokenization.load_corpus(DataConfig()), tokenization.load_corpus(DataConfig(end_token='end'))
  assert np.count_nonzero(marked.tokens == 256) == 65
  np.testing.assert_array_equal(np.where(marked.tokens == 256, 10, marked.tokens), plain.tokens)
  first = marked.tokens[: int(np.argmax(marked.tokens == 256))].astype(np.uint8).tobytes()
  assert first.endswith(
    b'So Joseph died, being an hundred and ten years old: and they embalmed him, and he was put in a coffin in Egypt.'
  )


def test_records_are_documents_and_the_checksum_includes_their_ends(tmp_path):
  (tmp_path / 'a.jsonl').write_text('\n'.join(json.dumps({'text': text}) for text in ('one\ntwo', 'three')))
  (tmp_path / 'b.jsonl').write_text('\n'.join(json.dumps({'text': text}) for text in ('one', 'two\nthree')))
  loaded = {}
  for name, end in itertools.product('ab', ('', 'end')):
    loaded[name, end] = tokenization.load_corpus(
      DataConfig(task='files', paths=f'{tmp_path}/{name}.jsonl', end_token=end)
    )
  assert loaded['a', ''].checksum == loaded['b', ''].checksum
  assert len({corpus.checksum for corpus in loaded.values()}) == 3
  again = tokenization.load_corpus(DataConfig(task='files', paths=f'{tmp_path}/a.jsonl', end_token='end'))
  assert again.end_id == 256
  np.testing.assert_array_equal(again.tokens, loaded['a', 'end'].tokens)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'end_token': '<end>'}, r"^data\.end_token='<end>': without a tokenizer, the end token must be 'end'$"),
    ({'task': 'copy', 'end_token': 'end'}, 'data.end_token has no effect with data.task=copy'),
    ({'mask_documents': True}, r'data\.mask_documents=True needs data\.end_token'),
  ],
)
def test_settings_without_effect_are_refused(fields, message):
  with pytest.raises(ConfigError, match=message):
    DataConfig(**fields)


def test_a_single_document_is_refused(tmp_path):
  with pytest.raises(ConfigError, match='the text is a single document, so there is no document end to mark'):
    tokenization.load_corpus(config_with(tmp_path, b'one', end_token='end'))


def test_an_end_token_that_the_text_contains_is_refused(tmp_path):
  byte_level().save(str(tmp_path / 't.json'))
  config = config_with(tmp_path, b'a' * 100, b'b' * 100, tokenizer=str(tmp_path / 't.json'), end_token='a')
  with pytest.raises(ConfigError, match='the tokenized text contains this token'):
    tokenization.load_corpus(config)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=8, max_size=60), st.integers(1, 9), st.booleans())
def test_each_input_has_the_index_of_its_document(tokens, sequence_length, partial):
  segments = [Segment('train', 0, len(tokens), len(tokens) - 1)]
  windows = Windows(np.array(tokens, np.uint8), segments, sequence_length, partial, end_id=3)
  for row in windows:
    number, expected = 0, []
    for token in row['inputs_T'].tolist():
      expected.append(number)
      number += token == 3
    assert row['documents_T'].tolist() == expected
    assert row['documents_T'].dtype == np.int32


@pytest.mark.parametrize('mask', [False, True])
def test_batches_have_document_indices_if_attention_is_masked(tmp_path, mask):
  config = config_with(tmp_path, *[b'document' * 4] * 40, end_token='end', mask_documents=mask, sequence_length=50)
  loaded = loading.load_splits(config, batch_size=2)
  drawn = [
    next(batches.train_batches(loaded, 2, seed=0, start_step=0, num_steps=1)),
    next(batches.evaluation_batches(loaded.test, 2)),
  ]
  for batch in drawn:
    assert ('documents_BT' in batch) == mask
    if mask:
      assert batch['documents_BT'].shape == batch['inputs_BT'].shape
      assert batch['documents_BT'].max() >= 1
