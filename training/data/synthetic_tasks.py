"""Synthetic tasks: copy and associative recall, with each sequence generated from its index."""

import hashlib
from collections.abc import Callable

import numpy as np

from training.config import ConfigError, DataConfig
from training.data.dataset import Batch, Dataset
from training.data.splits import Split

SYMBOLS = 64
SIZES: dict[Split, int] = {'train': 2**20, 'validation': 1024, 'test': 1024}


def copy(rng: np.random.Generator, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
  """Generates a random string, a separator, and the string again: `b a d | b a d`.

  Only the second string is scored. A model that has learned only the set of symbols has a loss of ln(64) = 4.159 nats.

  Args:
    rng: the generator of this sequence.
    max_tokens: the maximum number of tokens.

  Returns:
    The tokens, and a mask of those that are scored.
  """
  string = rng.integers(SYMBOLS, size=(max_tokens - 1) // 2)
  tokens = np.concatenate([string, [SYMBOLS], string])
  return tokens, np.arange(tokens.size) > string.size


def associative_recall(rng: np.random.Generator, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
  """Generates key-value pairs, then queries: each a key, followed by its value: `a 3 b 7 c 3 | b 7 a 3 c 3`.

  Keys are distinct, and no symbol is both a key and a value. The queries are in random order, each key once before any
  is repeated (Ba et al. 2016, section 4.1; several queries per sequence as in Arora et al. 2023). Only the values in
  the queries are scored. The loss without learning is ln(64), as in `copy`.

  Args:
    rng: the generator of this sequence.
    max_tokens: the maximum number of tokens: half for the pairs, of which there are at most 64, the rest for queries.

  Returns:
    The tokens, and a mask of those that are scored.
  """
  pairs = min(max_tokens // 4, SYMBOLS)
  keys = rng.permutation(SYMBOLS)[:pairs]
  values = SYMBOLS + rng.integers(SYMBOLS, size=pairs)
  queries = np.resize(rng.permutation(pairs), max_tokens // 2 - pairs)
  order = np.concatenate([np.arange(pairs), queries])
  tokens = np.stack([keys[order], values[order]], axis=1).ravel()
  position = np.arange(tokens.size)
  return tokens, (position >= 2 * pairs) & (position % 2 == 1)


TASKS: dict[str, Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]] = {
  'copy': copy,
  'associative_recall': associative_recall,
}
VOCAB_SIZES = {'copy': SYMBOLS + 1, 'associative_recall': 2 * SYMBOLS}
MIN_LENGTHS = {'copy': 2, 'associative_recall': 7}  # the minimum T: one symbol to copy; two pairs to distinguish


class Synthetic(Dataset):
  """A split of a synthetic task: sequence i depends only on the task, the split, the data seed and i.

  The validation and test splits are the same for every seed.
  """

  def __init__(self, config: DataConfig, split: Split):
    if config.sequence_length < MIN_LENGTHS[config.task]:
      raise ConfigError(
        f'data.sequence_length={config.sequence_length} is too short for data.task={config.task}: '
        f'it must be at least {MIN_LENGTHS[config.task]}'
      )
    self.sequence_length = config.sequence_length
    self._generate = TASKS[config.task]
    self._key = [list(SIZES).index(split), config.seed if split == 'train' else 0]
    self._size = SIZES[split]

  def __len__(self) -> int:
    return self._size

  def batch(self, rows: np.ndarray) -> Batch:
    """See `Dataset.batch`. Generates each sequence with its own generator; pads with 0, which is not scored."""
    length = self.sequence_length + 1
    tokens, scored = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), np.float32)
    for index, row in enumerate(rows):
      sequence, mask = self._generate(np.random.default_rng([*self._key, int(row)]), length)
      tokens[index, : sequence.size], scored[index, : sequence.size] = sequence, mask
    return {'inputs_BT': tokens[:, :-1], 'targets_BT': tokens[:, 1:], 'weights_BT': scored[:, 1:]}

  def checksum(self) -> str:
    """Returns the sha256 of all sequences of the split: NumPy may change its generators between versions."""
    digest = hashlib.sha256()
    for array in self.batch(np.arange(len(self))).values():
      digest.update(array.tobytes())
    return digest.hexdigest()
