import collections
import math

import numpy as np
import pytest

from training.config import DataConfig
from training.data import loading, ngrams
from training.data.corpus import Corpus, Segment

TRAIN = ['abracadabra', 'a', '', 'cadabrac']
HELD_OUT = {'validation': ['abraxas', 'ba', 'c', '', 'racab'], 'test': ['bard', 'acab']}


def corpus_of(vocab_size: int = 256) -> Corpus:
  """The segments above, one after the other; each token stands for 2 bytes."""
  segments, tokens = [], ''
  parts = [('train', part) for part in TRAIN] + [(split, part) for split, texts in HELD_OUT.items() for part in texts]
  for split, part in parts:
    segments.append(Segment(split, len(tokens), len(tokens) + len(part), 2 * max(len(part) - 1, 0)))
    tokens += part
  return Corpus(np.frombuffer(tokens.encode(), np.uint8), tuple(segments), vocab_size, 'checksum')


def data_of(corpus: Corpus) -> loading.Data:
  return loading.Data(corpus.vocab_size, corpus.checksum, None, None, None, corpus)


def probability(word: str, history: str) -> float:
  """Witten-Bell smoothing, by searching the training text for each probability."""
  lower = 1 / 256 if not history else probability(word, history[1:])
  followers = collections.Counter(
    part[k + len(history)] for part in TRAIN for k in range(len(part) - len(history)) if part[k:].startswith(history)
  )
  if history == '':
    followers = collections.Counter(''.join(TRAIN))
  if not followers:
    return lower
  return (followers[word] + len(followers) * lower) / (followers.total() + len(followers))


@pytest.mark.parametrize('split', HELD_OUT)
def test_bits_per_byte_agree_with_a_direct_computation(split):
  result = ngrams.ngram_bits_per_byte(data_of(corpus_of()), split)
  for order, name in enumerate(('unigram', 'bigram', 'trigram'), start=1):
    bits = [
      -math.log2(probability(part[k], part[max(k - order + 1, 0) : k]))
      for part in HELD_OUT[split]
      for k in range(1, len(part))
    ]
    assert result[name] == pytest.approx(sum(bits) / (2 * len(bits)), rel=1e-12)


def test_smoothed_probabilities_sum_to_one():
  counts = np.random.default_rng(0).poisson(0.3, (5, 5, 5))
  counts[2] = 0
  tables = [ngrams.Table(marginal) for marginal in (counts.sum((0, 1)), counts.sum(0), counts)]
  symbols = list(np.indices(counts.shape))
  for order in (1, 2, 3):
    table = ngrams.probabilities(tables[:order], 5, symbols[-order:])
    assert table.min() > 0
    np.testing.assert_allclose(table.sum(-1), 1)


def test_bits_per_byte_of_kjv():
  result = ngrams.ngram_bits_per_byte(loading.load_splits(DataConfig(), 16))
  assert result == pytest.approx({'unigram': 4.4894, 'bigram': 3.2785, 'trigram': 2.4911}, abs=1e-4)


def test_synthetic_tasks_and_large_vocabularies_have_no_ngram_baselines():
  assert ngrams.ngram_bits_per_byte(loading.load_splits(DataConfig(task='copy'), 16)) == {}
  tokens = np.arange(257, dtype=np.uint16)
  segments = (Segment('train', 0, 200, 199), Segment('validation', 200, 257, 56))
  assert ngrams.ngram_bits_per_byte(data_of(Corpus(tokens, segments, 257, 'checksum'))) == {}


def test_unigram_entropy_counts_only_scored_targets(tmp_path):
  text = bytes(np.random.default_rng(0).integers(97, 105, 1000, np.uint8))
  (tmp_path / 'text.txt').write_bytes(text)
  loaded = loading.load_splits(DataConfig(task='files', paths=str(tmp_path / 'text.txt'), sequence_length=7), 1)
  counts = collections.Counter(text[901:950])
  expected = -sum(n / 49 * math.log(n / 49) for n in counts.values())
  assert ngrams.unigram_entropy(loaded.validation) == pytest.approx(expected, rel=1e-12)
