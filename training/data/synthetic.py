"""Tasks that need no text: sequences made from their number, so that any of them can be had at any time."""

import hashlib
from collections.abc import Callable

import numpy as np

from training.config import ConfigError, DataConfig
from training.data.corpus import Split
from training.data.sources import Batch, Source

SYMBOLS = 64
SIZES: dict[Split, int] = {'train': 2**20, 'validation': 1024, 'test': 1024}


def copy(rng: np.random.Generator, room: int) -> tuple[np.ndarray, np.ndarray]:
  """A random string, a separator, and the string again: `b a d | b a d`.

  Only the second string is scored. Who has learned nothing but which symbols come scores ln(64) = 4.159 nats.

  Args:
    rng: the sequence's own generator.
    room: the number of tokens there may be.

  Returns:
    The tokens, and which of them are scored.
  """
  string = rng.integers(SYMBOLS, size=(room - 1) // 2)
  tokens = np.concatenate([string, [SYMBOLS], string])
  return tokens, np.arange(tokens.size) > string.size


def associative_recall(rng: np.random.Generator, room: int) -> tuple[np.ndarray, np.ndarray]:
  """Pairs of a key and a value, then keys again, each to be answered by its value: `a 3 b 7 c 3 | b 7 a 3 c 3`.

  Keys differ from one another and from the values. They are asked in random order, each once before any is asked
  again (Ba et al. 2016, section 4.1; several queries a sequence as in Arora et al. 2023). Only the answers are scored;
  ln(64) as in `copy`.

  Args:
    rng: the sequence's own generator.
    room: the number of tokens there may be: half for the pairs, as long as there are keys, half for the queries.

  Returns:
    The tokens, and which of them are scored.
  """
  pairs = min(room // 4, SYMBOLS)
  keys = rng.permutation(SYMBOLS)[:pairs]
  values = SYMBOLS + rng.integers(SYMBOLS, size=pairs)
  queries = np.resize(rng.permutation(pairs), room // 2 - pairs)
  order = np.concatenate([np.arange(pairs), queries])
  tokens = np.stack([keys[order], values[order]], axis=1).ravel()
  position = np.arange(tokens.size)
  return tokens, (position >= 2 * pairs) & (position % 2 == 1)


TASKS: dict[str, Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]] = {
  'copy': copy,
  'associative_recall': associative_recall,
}
VOCAB_SIZES = {'copy': SYMBOLS + 1, 'associative_recall': 2 * SYMBOLS}
SHORTEST = {'copy': 2, 'associative_recall': 7}  # T: one symbol to copy; two pairs to tell apart


class Synthetic(Source):
  """A split of a synthetic task: sequence i depends on the task, the split, the data seed and i alone.

  Validation and test are the same for every seed.
  """

  def __init__(self, config: DataConfig, split: Split):
    if config.sequence_length < SHORTEST[config.task]:
      raise ConfigError(
        f'data.sequence_length={config.sequence_length} has no room for data.task={config.task}: '
        f'it must be at least {SHORTEST[config.task]}'
      )
    self.sequence_length = config.sequence_length
    self._make = TASKS[config.task]
    self._key = [list(SIZES).index(split), config.seed if split == 'train' else 0]
    self._size = SIZES[split]

  def __len__(self) -> int:
    return self._size

  def batch(self, rows: np.ndarray) -> Batch:
    """Makes the sequences, each from its own generator; what they leave of the room is padded with 0, unscored."""
    room = self.sequence_length + 1
    tokens, scored = np.zeros((len(rows), room), np.int32), np.zeros((len(rows), room), np.float32)
    for place, row in enumerate(rows):
      made, counts = self._make(np.random.default_rng([*self._key, int(row)]), room)
      tokens[place, : made.size], scored[place, : made.size] = made, counts
    return {'inputs_BT': tokens[:, :-1], 'targets_BT': tokens[:, 1:], 'weights_BT': scored[:, 1:]}

  def checksum(self) -> str:
    """sha256 of all sequences of the split: NumPy may change its generators between versions."""
    digest = hashlib.sha256()
    for array in self.batch(np.arange(len(self))).values():
      digest.update(array.tobytes())
    return digest.hexdigest()
