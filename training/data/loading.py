"""Loads the data of a run: the train, validation and test splits."""

import bisect
import dataclasses
import math
from typing import NoReturn

import numpy as np

from training.config import Config, ConfigError, DataConfig
from training.data.corpus import Corpus
from training.data.dataset import Dataset
from training.data.splits import Split
from training.data.synthetic_tasks import VOCAB_SIZES, Synthetic
from training.data.tokenization import load_corpus
from training.data.windows import Windows


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
  """The data of a run.

  Attributes:
    vocab_size: all token ids are below it.
    checksum: of the text and its tokenizer, or of a synthetic task's validation split.
    train: full sequences, in which each target is predicted once.
    validation: all tokens of the split except the first of each segment, padded and weighted.
    test: as validation.
    corpus: the tokenized text; None for a synthetic task.
  """

  vocab_size: int
  checksum: str
  train: Dataset
  validation: Dataset
  test: Dataset
  corpus: Corpus | None

  def bits_per_byte(self, nats_per_token: float, split: Split) -> float | None:
    """Converts the mean loss over a split's scored tokens into bits per byte; None for a synthetic task."""
    if self.corpus is None:
      return None
    return nats_per_token / math.log(2) / self.corpus.bytes_per_token(split)


def load_data(config: Config) -> Data:
  """Loads the data of a run.

  Raises:
    ConfigError: in the cases of `load_splits`, or if the data have token ids outside the model's vocabulary.
  """
  data = load_splits(config.data, config.run.batch_size)
  if data.vocab_size > config.model.vocab_size:
    raise ConfigError(
      f'model.vocab_size={config.model.vocab_size} is too small for the data, whose vocabulary has {data.vocab_size} '
      f'tokens: set model.vocab_size={data.vocab_size}'
    )
  return data


def load_splits(config: DataConfig, batch_size: int) -> Data:
  """Loads the text or generates the synthetic task that `config` specifies.

  Raises:
    ConfigError: if the text cannot be read, or is too short for one training batch or one held-out target.
  """
  if config.synthetic:
    train, validation, test = Synthetic(config, 'train'), Synthetic(config, 'validation'), Synthetic(config, 'test')
    return Data(VOCAB_SIZES[config.task], validation.checksum(), train, validation, test, corpus=None)
  corpus = load_corpus(config)

  def windows(split: Split) -> Windows:
    end_id = corpus.end_id if config.mask_documents else None
    return Windows(corpus.tokens, corpus.segments_of(split), config.sequence_length, split != 'train', end_id)

  data = Data(corpus.vocab_size, corpus.checksum, windows('train'), windows('validation'), windows('test'), corpus)
  name = f'data.paths={config.paths}' if config.task == 'files' else f'data.task={config.task}'
  if len(data.train) < batch_size:
    raise_too_short(name, corpus, config.sequence_length, batch_size)
  if not len(data.validation) or not len(data.test):
    raise ConfigError(
      f'{name}: a text of {len(corpus.tokens)} tokens is too short for held-out splits: use a longer text'
    )
  return data


def raise_too_short(name: str, corpus: Corpus, sequence_length: int, batch_size: int) -> NoReturn:
  """Raises ConfigError with the largest batch size and sequence length that the text is long enough for."""
  targets = np.array([segment.scored_tokens for segment in corpus.segments_of('train')])
  sequences = np.sum(targets // sequence_length)
  lengths = range(1, sequence_length)
  longest = bisect.bisect_left(lengths, True, key=lambda length: np.sum(targets // length) < batch_size)
  remedies = [f'run.batch_size={sequences}'] if sequences else []
  remedies += [f'data.sequence_length={longest}'] if longest else []
  raise ConfigError(
    f'{name}: the text has {sequences} training sequences of {sequence_length} tokens, too few for a batch of '
    f'{batch_size}: {"set " + " or ".join(remedies) if remedies else "use a longer text"}'
  )
