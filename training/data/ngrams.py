"""What counting alone achieves on the same text: the yardsticks a model must beat."""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from training.data.corpus import Segment, Split
from training.data.held_out import COUNTED_TOGETHER, chosen_segments
from training.data.loading import Data, evaluation_batches
from training.data.sources import Source

NAMES = ('unigram', 'bigram', 'trigram')
MAX_SYMBOLS = 256  # so that a symbol fits a byte, and a table of trigrams 64 MiB
CHUNK = 2**20  # tokens whose n-grams are counted at once: it bounds the memory, and does not change the counts


def unigram_entropy(source: Source) -> float:
  """The entropy of a split's scored targets, in nats: the least loss of a model that ignores its input."""
  counts = np.zeros(0, np.int64)
  for batch in evaluation_batches(source, COUNTED_TOGETHER):
    own = np.bincount(batch['targets_BT'][batch['weights_BT'] > 0], minlength=counts.size)
    own[: counts.size] += counts
    counts = own
  shares = counts[counts > 0] / counts.sum()
  return -float(np.sum(shares * np.log(shares)))


def yardsticks(data: Data, split: Split = 'validation', tokens: int = 0) -> dict[str, float]:
  """Bits per byte of a unigram, a bigram and a trigram model on a split, counted on the training split.

  They score what a model scores: all tokens but the first of each segment. The second has one token before it, and the
  trigram model takes the bigram's word for it. Unlike a model's, their context does not end where a window begins, so
  the numbers hold for every sequence length.

  Args:
    data: from `training.data.loading.load`.
    split: which one they score.
    tokens: run.final_evaluation_tokens: they score the part of the split that models are scored on.

  Returns:
    {'unigram': ..., 'bigram': ..., 'trigram': ...}; nothing for a synthetic task, which has no bytes, nor for
    tokens of more than 256 kinds, whose trigrams would not fit a table.
  """
  corpus = data.corpus
  if corpus is None:
    return {}
  symbols = np.flatnonzero(count_tokens(corpus.tokens, corpus.vocab_size))
  if symbols.size > MAX_SYMBOLS:
    return {}
  place = np.zeros(corpus.vocab_size, np.uint8)  # of a token id among the symbols that occur
  place[symbols] = np.arange(symbols.size)

  def runs(segments: Iterable[Segment]) -> Iterator[np.ndarray]:
    return (place[corpus.tokens[segment.start : segment.stop]] for segment in segments)

  chosen = chosen_segments(corpus.of(split), tokens)
  scored_bytes = sum(segment.scored_bytes for segment in chosen)
  tables: list[Table] = []
  result = {}
  for order, name in enumerate(NAMES, start=1):
    tables.append(Table(count_ngrams(runs(corpus.of('train')), order, symbols.size)))
    result[name] = sum(nats(tables, corpus.vocab_size, run) for run in runs(chosen)) / math.log(2) / scored_bytes
  return result


def count_tokens(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
  """How often each token id occurs."""
  counts = np.zeros(vocab_size, np.int64)
  for start in range(0, len(tokens), CHUNK):
    counts += np.bincount(tokens[start : start + CHUNK], minlength=vocab_size)
  return counts


def count_ngrams(runs: Iterable[np.ndarray], order: int, num_symbols: int) -> np.ndarray:
  """How often each n-gram occurs in runs of symbols (uint8): `order` axes of num_symbols."""
  counts = np.zeros(num_symbols**order, np.uint32)
  for run in runs:
    for start in range(0, len(run) - order + 1, CHUNK):
      codes = np.zeros(1, np.int32)
      for symbols in ngrams(run[start : start + CHUNK + order - 1], order):
        codes = codes * num_symbols + symbols
      np.add.at(counts, codes, counts.dtype.type(1))  # another type would be converted, ten times as slowly
  return counts.reshape((num_symbols,) * order)


def ngrams(run: np.ndarray, order: int) -> list[np.ndarray]:
  """All n-grams of a run, as `order` arrays: the first symbols, the second ones, ..."""
  length = max(len(run) - order + 1, 0)
  return [run[k : k + length] for k in range(order)]


class Table:
  """The counts of all n-grams of one order, and the probabilities of their last symbol by Witten-Bell smoothing.

  Interpolated (Witten and Bell 1991, method C; compared with others by Chen and Goodman 1998):

      p(w | h) = (c(h w) + n(h) p(w | h')) / (c(h) + n(h))

  where h' is h without its oldest symbol, c(h) = sum over w of c(h w), and n(h) is the number of kinds of w seen after
  h. After an h never seen it is p(w | h').
  """

  def __init__(self, counts: np.ndarray):
    """Takes c(h w), w along the last axis."""
    self.counts = counts
    self._kinds = np.count_nonzero(counts, axis=-1)
    self._total = counts.sum(axis=-1, dtype=np.int64) + self._kinds

  def probabilities(self, symbols: list[np.ndarray], lower: np.ndarray | float) -> np.ndarray:
    """p(w | h) of n-grams.

    Args:
      symbols: their symbols, as `ngrams` gives them.
      lower: p(w | h') of each.
    """
    history = tuple(symbols[:-1])
    total = self._total[history]
    mixed = self._kinds[history] * lower + self.counts[tuple(symbols)]
    return np.where(total > 0, mixed / np.maximum(total, 1), lower)


def probabilities(tables: list[Table], vocab_size: int, symbols: list[np.ndarray]) -> np.ndarray:
  """The probability of the last symbol of each n-gram, by the tables of orders 1 to n over a uniform distribution."""
  lower: np.ndarray | float = 1 / vocab_size
  for order, table in enumerate(tables, start=1):
    lower = table.probabilities(symbols[len(symbols) - order :], lower)
  return np.asarray(lower)


def nats(tables: list[Table], vocab_size: int, run: np.ndarray) -> float:
  """-log p of all symbols of a run but the first: by the last table where there is context, else by those before it."""
  order = len(tables)
  if order == 1:
    return -float(np.log(probabilities(tables, vocab_size, [run[1:]])).sum())
  shorter = nats(tables[:-1], vocab_size, run[: order - 1])
  return shorter - float(np.log(probabilities(tables, vocab_size, ngrams(run, order))).sum())
