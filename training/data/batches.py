"""Draws batches of sequences: shuffled by seed and step for training, in order for evaluation."""

from collections.abc import Iterator

import grain
import numpy as np

from training.data.dataset import Batch, Dataset
from training.data.loading import Data

ALL = slice(None)


def train_batches(
  data: Data,
  batch_size: int,
  seed: int,
  start_step: int,
  num_steps: int,
  rows: np.ndarray | slice = ALL,
) -> Iterator[Batch]:
  """Yields the training batches of `num_steps` steps: start_step, start_step + 1, ...

  The sequences in the global batch of a step depend only on the seed and the step. A checkpoint
  therefore needs no state of the data other than the step. Each epoch has its own order.

  grain shuffles the indices of the sequences. Its `batch` is not used because it fails for batches of one sequence of
  an endlessly repeated dataset. Batches are assembled in the caller's thread: the data are in memory, and another
  thread would only compete for a core.

  Args:
    data: from `load_data`.
    batch_size: the size of the global batch.
    seed: determines the order.
    start_step: the first step, from 0.
    num_steps: the number of batches.
    rows: the rows of each global batch to return; the others are not looked up.
  """
  order = grain.MapDataset.range(len(data.train)).seed(seed).shuffle().repeat()
  offsets = np.arange(batch_size)[rows].tolist()
  for step in range(start_step, start_step + num_steps):
    yield data.train.batch(np.array([order[step * batch_size + offset] for offset in offsets]))


def evaluation_batches(
  dataset: Dataset, batch_size: int, sequences: int | None = None, rows: np.ndarray | slice = ALL, first: int = 0
) -> Iterator[Batch]:
  """Yields batches of the sequences of a dataset in order, or of a fixed, evenly spread subset of them.

  The last batch is padded with sequences of weight 0, so that all batches have the same shape. Mean losses must
  therefore be weighted by the targets' weights.

  Args:
    dataset: the sequences.
    batch_size: the size of the global batch.
    sequences: the size of the subset; None for all sequences.
    rows: the rows of each global batch to return, as in `train_batches`.
    first: the index of the first batch to yield.
  """
  count = len(dataset) if sequences is None else min(len(dataset), sequences)
  chosen = np.arange(count) * len(dataset) // max(count, 1)
  for start in range(first * batch_size, count, batch_size):
    indices = chosen[start : start + batch_size]
    batch = dataset.batch(np.resize(indices, batch_size)[rows])
    batch['weights_BT'][np.arange(batch_size)[rows] >= len(indices)] = 0
    yield batch
