"""What counting alone achieves on the same text: the yardsticks a model must beat."""

import math

import numpy as np

from training.corpus import Split
from training.data import Data, evaluation_batches
from training.sources import Source

NAMES = ('unigram', 'bigram', 'trigram')
MAX_SYMBOLS = 256  # a trigram table of doubles then takes 128 MiB


def unigram_entropy(source: Source) -> float:
  """The entropy of a split's scored targets, in nats: the least loss of a model that ignores its input."""
  batches = evaluation_batches(source, batch_size=1024)
  scored = np.concatenate([batch['targets_BT'][batch['weights_BT'] > 0] for batch in batches])
  counts = np.unique(scored, return_counts=True)[1]
  shares = counts / scored.size
  return -float(np.sum(shares * np.log(shares)))


def yardsticks(data: Data, split: Split = 'validation') -> dict[str, float]:
  """Bits per byte of a unigram, a bigram and a trigram model on a split, counted on the training split.

  They score what a model scores: all tokens but the first of each segment. The second has one token before it, and the
  trigram model takes the bigram's word for it. Unlike a model's, their context does not end where a window begins, so
  the numbers hold for every sequence length.

  Returns:
    {'unigram': ..., 'bigram': ..., 'trigram': ...}; nothing for a synthetic task, which has no bytes, nor for
    tokens of more than 256 kinds, whose trigrams would not fit a table.
  """
  corpus = data.corpus
  if corpus is None:
    return {}
  symbols = np.unique(corpus.tokens)
  if symbols.size > MAX_SYMBOLS:
    return {}
  place = np.zeros(corpus.vocab_size, int)  # of a token id among the symbols that occur
  place[symbols] = np.arange(symbols.size)

  def runs(part: Split) -> list[np.ndarray]:
    return [place[corpus.tokens[segment.start : segment.stop]] for segment in corpus.of(part)]

  train, held_out = runs('train'), runs(split)
  scored_bytes = sum(segment.scored_bytes for segment in corpus.of(split))
  tables: list[np.ndarray] = []
  lower = np.full(symbols.size, 1 / corpus.vocab_size)
  result = {}
  for order, name in enumerate(NAMES, start=1):
    lower = witten_bell(count_ngrams(train, order, symbols.size), lower)
    tables.append(lower)
    result[name] = sum(nats(tables, run) for run in held_out) / math.log(2) / scored_bytes
  return result


def nats(tables: list[np.ndarray], run: np.ndarray) -> float:
  """-log p of all symbols of a run but the first: by the last table where there is context, else by those before it."""
  order = len(tables)
  if order == 1:
    return -float(np.log(tables[0][run[1:]]).sum())
  return nats(tables[:-1], run[: order - 1]) - float(np.log(tables[-1][tuple(ngrams(run, order))]).sum())


def ngrams(run: np.ndarray, order: int) -> list[np.ndarray]:
  """All n-grams of a run, as `order` arrays: the first symbols, the second ones, ..."""
  length = max(len(run) - order + 1, 0)
  return [run[k : k + length] for k in range(order)]


def count_ngrams(runs: list[np.ndarray], order: int, num_symbols: int) -> np.ndarray:
  """How often each n-gram occurs: `order` axes of num_symbols."""
  shape = (num_symbols,) * order
  codes = [np.ravel_multi_index(ngrams(run, order), shape) for run in runs]
  return np.bincount(np.concatenate(codes), minlength=math.prod(shape)).reshape(shape)


def witten_bell(counts: np.ndarray, lower: np.ndarray) -> np.ndarray:
  """Interpolated Witten-Bell smoothing (Witten and Bell 1991, method C; compared with others by Chen and Goodman 1998).

      p(w | h) = (c(h w) + n(h) p(w | h')) / (c(h) + n(h))

  where h' is h without its oldest symbol, c(h) = sum over w of c(h w), and n(h) is the number of kinds of w seen after
  h. After an h never seen it is p(w | h').

  Args:
    counts: c(h w), w along the last axis.
    lower: p(w | h'), one axis fewer (or the distribution to fall back on in the end).
  """
  kinds = np.count_nonzero(counts, axis=-1, keepdims=True)
  total = counts.sum(axis=-1, keepdims=True) + kinds
  mixed = kinds * lower
  mixed += counts
  mixed /= np.maximum(total, 1)
  return np.where(total > 0, mixed, lower)
