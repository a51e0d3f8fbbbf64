"""The data of a run: three splits of sequences, and batches of them."""

import bisect
import dataclasses
import math
from collections.abc import Iterator
from typing import NoReturn

import grain
import numpy as np

from training.config import Config, ConfigError, DataConfig
from training.data.corpus import Corpus, Split, load_corpus
from training.data.sources import Batch, Source, Windows
from training.data.synthetic import VOCAB_SIZES, Synthetic

ALL = slice(None)


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
  """What a run reads.

  Attributes:
    vocab_size: token ids are below it.
    checksum: of the text and its tokenizer, or of a synthetic task's validation split.
    train: full sequences, each target predicted once.
    validation: the whole split, but for the first token of each segment; padded, weighted.
    test: likewise.
    corpus: the tokens behind the splits; None for a synthetic task.
  """

  vocab_size: int
  checksum: str
  train: Source
  validation: Source
  test: Source
  corpus: Corpus | None

  def bits_per_byte(self, nats_per_token: float, split: Split) -> float | None:
    """Turns the mean loss over a split's scored tokens into bits a byte; None where there are no bytes."""
    if self.corpus is None:
      return None
    return nats_per_token / math.log(2) / self.corpus.bytes_per_token(split)


def load(config: DataConfig, batch_size: int) -> Data:
  """Reads or makes what `config` names.

  Raises:
    ConfigError: if it cannot be read, or is too short for one batch of training, or for a target to hold out.
  """
  if config.synthetic:
    train, validation, test = Synthetic(config, 'train'), Synthetic(config, 'validation'), Synthetic(config, 'test')
    return Data(VOCAB_SIZES[config.task], validation.checksum(), train, validation, test, corpus=None)
  corpus = load_corpus(config)

  def cut(split: Split) -> Windows:
    end_id = corpus.end_id if config.mask_documents else None
    return Windows(corpus.tokens, corpus.of(split), config.sequence_length, split != 'train', end_id)

  data = Data(corpus.vocab_size, corpus.checksum, cut('train'), cut('validation'), cut('test'), corpus)
  name = f'data.paths={config.paths}' if config.task == 'files' else f'data.task={config.task}'
  if len(data.train) < batch_size:
    refuse_short_text(name, corpus, config.sequence_length, batch_size)
  if not len(data.validation) or not len(data.test):
    raise ConfigError(f'{name}: a text of {len(corpus.tokens)} tokens is too short to hold any out: give a longer one')
  return data


def load_for(config: Config) -> Data:
  """What a run reads.

  Raises:
    ConfigError: if it cannot be read, is too short, or has token ids that the model's embedding has no row for.
  """
  data = load(config.data, config.run.batch_size)
  if data.vocab_size > config.model.vocab_size:
    raise ConfigError(
      f'model.vocab_size={config.model.vocab_size}, and the data have {data.vocab_size} tokens: '
      f'set model.vocab_size={data.vocab_size}'
    )
  return data


def refuse_short_text(name: str, corpus: Corpus, sequence_length: int, batch_size: int) -> NoReturn:
  """Raises ConfigError with the sizes that would fit the text."""
  targets = np.array([segment.scored_tokens for segment in corpus.of('train')])
  sequences = np.sum(targets // sequence_length)
  lengths = range(1, sequence_length)
  longest = bisect.bisect_left(lengths, True, key=lambda length: np.sum(targets // length) < batch_size)
  remedies = [f'run.batch_size={sequences}'] if sequences else []
  remedies += [f'data.sequence_length={longest}'] if longest else []
  raise ConfigError(
    f'{name}: the text has {sequences} training sequences of {sequence_length} tokens, too few for a batch of '
    f'{batch_size}: {"set " + " or ".join(remedies) if remedies else "give a longer text"}'
  )


def train_batches(
  data: Data,
  batch_size: int,
  seed: int,
  start_step: int,
  num_steps: int,
  own: np.ndarray | slice = ALL,
) -> Iterator[Batch]:
  """The batches of steps start_step, start_step + 1, ...: num_steps of them.

  Which sequences form the global batch of a step depends on the seed and that step alone: the position in the data is
  the step, and nothing else has to be saved. Each epoch has its own order. grain shuffles the sequences' numbers, and
  its `batch` is not used, which cannot make batches of 1 of what is repeated without end; a batch is looked up whole,
  in the caller's thread: the data lie in memory, and a thread would only take its core.

  Args:
    data: from `load`.
    batch_size: of the global batch.
    seed: of the order.
    start_step: the first step, from 0.
    num_steps: how many batches.
    own: the rows of each global batch to give; the others are not looked up.
  """
  order = grain.MapDataset.range(len(data.train)).seed(seed).shuffle().repeat()
  rows = np.arange(batch_size)[own].tolist()
  for step in range(start_step, start_step + num_steps):
    yield data.train.batch(np.array([order[step * batch_size + row] for row in rows]))


def evaluation_batches(
  source: Source, batch_size: int, sequences: int | None = None, own: np.ndarray | slice = ALL, first: int = 0
) -> Iterator[Batch]:
  """The sequences of a split in order, or this many of them, the same ones always, evenly spread.

  The last batch is filled up with sequences of weight 0, so that all have one shape. Means are right when each target
  counts by its weight. `own` is as of `train_batches`; the batches before number `first` are left out.
  """
  count = len(source) if sequences is None else min(len(source), sequences)
  chosen = np.arange(count) * len(source) // max(count, 1)
  for start in range(first * batch_size, count, batch_size):
    rows = chosen[start : start + batch_size]
    batch = source.batch(np.resize(rows, batch_size)[own])
    batch['weights_BT'][np.arange(batch_size)[own] >= len(rows)] = 0
    yield batch
