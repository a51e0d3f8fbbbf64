"""The evaluated part of a held-out split, and that all values in a result are computed on that part."""

import collections
import math

import numpy as np
import pytest

from training.config import DataConfig
from training.data import ngrams
from training.data.batches import evaluation_batches
from training.data.corpus import Corpus, Segment
from training.data.evaluation_subset import (
  chosen_segments,
  evaluated_as_configured,
  evaluation_subset,
  evaluation_tokens,
)
from training.data.loading import Data, load_splits
from training.data.windows import Windows

BLOCK = 40  # tokens; each stands for 3 bytes in odd blocks, for 1 byte in even ones


@pytest.fixture
def small_blocks(monkeypatch):
  monkeypatch.setattr('training.data.evaluation_subset.BLOCK', BLOCK)


def data_of(segments: int, sequence_length: int = 7) -> Data:
  """Alternating blocks of train, validation and test; the last three are shorter."""
  tokens = np.random.default_rng(0).integers(0, 50, 3 * segments * BLOCK).astype(np.uint8)
  blocks = []
  for block in range(3 * segments):
    start, split = block * BLOCK, ('train', 'validation', 'test')[block % 3]
    stop = start + (BLOCK if block < 3 * segments - 3 else 11)
    blocks.append(Segment(split, start, stop, (stop - start - 1) * (3 if block % 2 else 1)))
  corpus = Corpus(tokens, tuple(blocks), 256, 'checksum')
  parts = [
    Windows(tokens, corpus.segments_of(split), sequence_length, partial=True)
    for split in ('train', 'validation', 'test')
  ]
  return Data(256, 'checksum', *parts, corpus)


def targets_of(source) -> list[int]:
  batches = evaluation_batches(source, 13)
  return [target for batch in batches for target in batch['targets_BT'][batch['weights_BT'] > 0].tolist()]


def expected_targets(data: Data, split: str, chosen: list[int]) -> list[int]:
  segments = [data.corpus.segments_of(split)[number] for number in chosen]
  return [token for s in segments for token in data.corpus.tokens[s.start + 1 : s.stop].tolist()]


@pytest.mark.parametrize('split', ['validation', 'test'])
@pytest.mark.parametrize(
  ('tokens', 'chosen'),
  [(1, [0]), (40, [0]), (80, [0, 5]), (120, [0, 3, 6]), (161, [0, 2, 4, 6, 8]), (0, range(10)), (10**9, range(10))],
)
@pytest.mark.usefixtures('small_blocks')
def test_the_subset_consists_of_whole_evenly_spread_segments(split, tokens, chosen):
  data = data_of(10)
  part = evaluation_subset(data, split, tokens)
  expected = expected_targets(data, split, list(chosen))
  assert targets_of(part.dataset) == expected
  assert (part.tokens, part.split_tokens) == (len(expected), 9 * 39 + 10)
  segments = [data.corpus.segments_of(split)[number] for number in chosen]
  bytes_per_token = sum(s.scored_bytes for s in segments) / len(expected)
  assert part.bits_per_byte(1.0) == pytest.approx(1 / math.log(2) / bytes_per_token)


@pytest.mark.usefixtures('small_blocks')
@pytest.mark.parametrize('tokens', [100, 130, 361, 0])
def test_the_subset_does_not_depend_on_the_sequence_length(tokens):
  parts = [evaluation_subset(data_of(10, length), 'test', tokens) for length in (1, 7, 64)]
  assert len({tuple(targets_of(part.dataset)) for part in parts}) == 1


@pytest.mark.usefixtures('small_blocks')
@pytest.mark.parametrize('tokens', [1, 120, 0])
def test_entropy_and_ngrams_are_computed_on_the_same_tokens(tokens):
  data = data_of(10)
  part = evaluation_subset(data, 'validation', tokens)
  counts = collections.Counter(targets_of(part.dataset))
  shares = [count / counts.total() for count in counts.values()]
  assert ngrams.unigram_entropy(part.dataset) == pytest.approx(-sum(p * math.log(p) for p in shares))
  chosen = {1: [0], 120: [0, 3, 6], 0: range(10)}[tokens]
  chosen_blocks = [data.corpus.segments_of('validation')[number] for number in chosen]
  alone = Corpus(data.corpus.tokens, (*data.corpus.segments_of('train'), *chosen_blocks), 256, 'checksum')
  expected = ngrams.ngram_bits_per_byte(Data(256, 'checksum', *(data.train,) * 3, alone), 'validation')
  assert ngrams.ngram_bits_per_byte(data, 'validation', tokens) == expected


def test_half_a_million_tokens_of_64_megabytes_are_spread_over_them():
  segments = [Segment('validation', k * 20 * 16384, k * 20 * 16384 + 16384, 16383) for k in range(195)]
  tokens = np.broadcast_to(np.uint8(7), 64_000_000)
  corpus = Corpus(tokens, tuple(segments), 256, 'checksum')
  part = evaluation_subset(
    Data(256, 'c', None, Windows(tokens, segments, 64, partial=True), None, corpus), 'validation', 2**19
  )
  assert 2**19 - 16384 <= part.tokens <= 2**19
  starts = part.dataset.dataset.starts[part.dataset.rows]
  assert np.diff(starts).max() <= 64_000_000 / 25


def test_kjv_is_evaluated_on_the_full_splits():
  data = load_splits(DataConfig(), 16)
  for split, source in (('validation', data.validation), ('test', data.test)):
    part = evaluation_subset(data, split, 524_288)
    assert part.dataset is source
    assert part.tokens == part.split_tokens == sum(segment.scored_tokens for segment in data.corpus.segments_of(split))
    assert part.bits_per_byte(2.0) == data.bits_per_byte(2.0, split)


def test_the_subset_of_a_synthetic_task_consists_of_whole_sequences():
  data = load_splits(DataConfig(task='copy', sequence_length=9), 4)
  full, part = evaluation_subset(data, 'test', 0), evaluation_subset(data, 'test', 400)
  assert (full.dataset, full.tokens, full.split_tokens, full.bits_per_byte(1.0)) == (data.test, 4096, 4096, None)
  assert (len(part.dataset), part.tokens, part.split_tokens) == (100, 400, 4096)
  rows = [k * 1024 // 100 for k in range(100)]
  np.testing.assert_array_equal(
    part.dataset.batch(np.arange(100))['inputs_BT'], data.test.batch(np.array(rows))['inputs_BT']
  )


@pytest.mark.usefixtures('small_blocks')
def test_the_subset_is_the_same_text_for_every_tokenizer():
  """With a tokenizer, the same blocks have a quarter of the tokens."""
  data = data_of(10)
  fewer = [segment._replace(stop=segment.start + 10) for segment in data.corpus.segments_of('test')]
  chosen, others = chosen_segments(data.corpus.segments_of('test'), 120), chosen_segments(fewer, 120)
  assert [segment.start for segment in chosen] == [segment.start for segment in others]


SUBSET = {
  'status': 'completed', 'final_evaluation_tokens': 100, 'val_tokens': 78, 'val_tokens_of': 361, 'test_tokens': 78,
  'test_tokens_of': 361,
}  # fmt: skip
WHOLE = SUBSET | {'final_evaluation_tokens': 400, 'val_tokens': 361, 'test_tokens': 361}


@pytest.mark.parametrize(
  ('result', 'tokens', 'evaluated', 'as_configured'),
  [
    (SUBSET, 100, 100, True), (SUBSET, 101, 100, False), (SUBSET, 0, 100, False), (SUBSET, 400, 100, False),
    (WHOLE, 400, 0, True), (WHOLE, 0, 0, True), (WHOLE, 401, 0, True), (WHOLE, 361, 0, False),
    (WHOLE | {'final_evaluation_tokens': 0}, 10**9, 0, False),
    (WHOLE | {'test_tokens_of': 500, 'test_tokens': 400}, 0, 400, False),
    ({'status': 'completed'}, 100, 0, True), (SUBSET | {'status': 'diverged', 'val_tokens': None}, 7, None, True),
  ],
)  # fmt: skip
def test_whether_a_result_was_evaluated_as_configured(result, tokens, evaluated, as_configured):
  assert evaluation_tokens(result) == evaluated
  assert evaluated_as_configured(result, tokens) == as_configured
