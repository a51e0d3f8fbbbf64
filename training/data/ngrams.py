"""N-gram baselines: the bits per byte of unigram, bigram and trigram models of the same text."""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from training.data.batches import evaluation_batches
from training.data.corpus import Segment
from training.data.dataset import Dataset
from training.data.evaluation_subset import BATCH_SIZE, chosen_segments
from training.data.loading import Data
from training.data.splits import Split

NAMES = ('unigram', 'bigram', 'trigram')
MAX_SYMBOLS = 256  # so that a symbol fits in a byte, and the trigram table in 64 MiB
CHUNK = 2**20  # tokens whose n-grams are counted at once; bounds the memory and does not change the counts


def unigram_entropy(dataset: Dataset) -> float:
  """The entropy of a split's scored targets, in nats: the lowest loss of a model that ignores its input."""
  counts = np.zeros(0, np.int64)
  for batch in evaluation_batches(dataset, BATCH_SIZE):
    batch_counts = np.bincount(batch['targets_BT'][batch['weights_BT'] > 0], minlength=counts.size)
    batch_counts[: counts.size] += counts
    counts = batch_counts
  shares = counts[counts > 0] / counts.sum()
  return -float(np.sum(shares * np.log(shares)))


def ngram_bits_per_byte(data: Data, split: Split = 'validation', tokens: int = 0) -> dict[str, float]:
  """Computes the bits per byte of n-gram models on a split, with counts from the training split.

  They score the same tokens as a model: all but the first of each segment. The second token has only one token before
  it, so the trigram model uses the bigram's probability. Unlike a model's context, theirs is not cut at the
  start of a window, so the numbers hold for every sequence length.

  Args:
    data: from `training.data.loading.load_data`.
    split: the split to score.
    tokens: run.final_evaluation_tokens, which selects the same part of the split as for models.

  Returns:
    {'unigram': ..., 'bigram': ..., 'trigram': ...}; empty for a synthetic task, which has no bytes, and for a text with
    more than 256 distinct tokens, whose trigram table would be too large.
  """
  corpus = data.corpus
  if corpus is None:
    return {}
  ids = np.flatnonzero(count_tokens(corpus.tokens, corpus.vocab_size))
  if ids.size > MAX_SYMBOLS:
    return {}
  symbol_of = np.zeros(corpus.vocab_size, np.uint8)  # token id -> its index among the ids that occur
  symbol_of[ids] = np.arange(ids.size)

  def symbols_of(segments: Iterable[Segment]) -> Iterator[np.ndarray]:
    return (symbol_of[corpus.tokens[segment.start : segment.stop]] for segment in segments)

  chosen = chosen_segments(corpus.segments_of(split), tokens)
  scored_bytes = sum(segment.scored_bytes for segment in chosen)
  tables: list[Table] = []
  result = {}
  for order, name in enumerate(NAMES, start=1):
    tables.append(Table(count_ngrams(symbols_of(corpus.segments_of('train')), order, ids.size)))
    total = sum(nats(tables, corpus.vocab_size, symbols) for symbols in symbols_of(chosen))
    result[name] = total / math.log(2) / scored_bytes
  return result


def count_tokens(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
  """Returns the number of occurrences of each token id."""
  counts = np.zeros(vocab_size, np.int64)
  for start in range(0, len(tokens), CHUNK):
    counts += np.bincount(tokens[start : start + CHUNK], minlength=vocab_size)
  return counts


def count_ngrams(segments: Iterable[np.ndarray], order: int, num_symbols: int) -> np.ndarray:
  """Returns the number of occurrences of each n-gram in arrays of symbols (uint8): `order` axes of num_symbols."""
  counts = np.zeros(num_symbols**order, np.uint32)
  for symbols in segments:
    for start in range(0, len(symbols) - order + 1, CHUNK):
      codes = np.zeros(1, np.int32)
      for position in ngrams(symbols[start : start + CHUNK + order - 1], order):
        codes = codes * num_symbols + position
      np.add.at(counts, codes, counts.dtype.type(1))  # with another type, NumPy converts, which is ten times slower
  return counts.reshape((num_symbols,) * order)


def ngrams(symbols: np.ndarray, order: int) -> list[np.ndarray]:
  """Returns all n-grams of an array as `order` arrays: their first symbols, their second symbols, ..."""
  length = max(len(symbols) - order + 1, 0)
  return [symbols[k : k + length] for k in range(order)]


class Table:
  """The counts of all n-grams of one order, and the probabilities of their last symbol by Witten-Bell smoothing.

  Interpolated (Witten and Bell 1991, method C; compared with others by Chen and Goodman 1998):

      p(w | h) = (c(h w) + n(h) p(w | h')) / (c(h) + n(h))

  where h' is h without its oldest symbol, c(h) = sum over w of c(h w), and n(h) is the number of distinct w that follow
  h. If h does not occur, p(w | h) = p(w | h').
  """

  def __init__(self, counts: np.ndarray):
    """Stores c(h w), with w along the last axis."""
    self.counts = counts
    self._followers = np.count_nonzero(counts, axis=-1)
    self._total = counts.sum(axis=-1, dtype=np.int64) + self._followers

  def probabilities(self, symbols: list[np.ndarray], lower: np.ndarray | float) -> np.ndarray:
    """Returns p(w | h) of n-grams.

    Args:
      symbols: the n-grams, as from `ngrams`.
      lower: p(w | h') of each.
    """
    history = tuple(symbols[:-1])
    total = self._total[history]
    mixed = self._followers[history] * lower + self.counts[tuple(symbols)]
    return np.where(total > 0, mixed / np.maximum(total, 1), lower)


def probabilities(tables: list[Table], vocab_size: int, symbols: list[np.ndarray]) -> np.ndarray:
  """Returns p(last symbol | the symbols before it) of each n-gram, interpolated down to a uniform distribution."""
  lower: np.ndarray | float = 1 / vocab_size
  for order, table in enumerate(tables, start=1):
    lower = table.probabilities(symbols[len(symbols) - order :], lower)
  return np.asarray(lower)


def nats(tables: list[Table], vocab_size: int, symbols: np.ndarray) -> float:
  """Returns -log p of all symbols except the first; those with too little context use the tables of lower order."""
  order = len(tables)
  if order == 1:
    return -float(np.log(probabilities(tables, vocab_size, [symbols[1:]])).sum())
  shorter = nats(tables[:-1], vocab_size, symbols[: order - 1])
  return shorter - float(np.log(probabilities(tables, vocab_size, ngrams(symbols, order))).sum())
