"""The interface of a dataset: sequences of tokens, returned in batches by index."""

import abc

import numpy as np

Batch = dict[str, np.ndarray]


class Dataset(abc.ABC):
  """A list of sequences, each with T inputs, T targets and T weights: 1 if the target is scored, otherwise 0."""

  @abc.abstractmethod
  def __len__(self) -> int:
    """The number of sequences."""

  @abc.abstractmethod
  def batch(self, rows: np.ndarray) -> Batch:
    """Returns the sequences with these indices: inputs_BT and targets_BT (int32), weights_BT (float32).

    If attention is restricted to documents, also documents_BT (int32): the index of the document of each input, from 0
    in each sequence. An end token belongs to the document that it ends.
    """

  def __getitem__(self, row: int) -> Batch:
    """Returns one sequence: inputs_T, targets_T, weights_T."""
    if not 0 <= row < len(self):
      raise IndexError(f'row {row} of {len(self)}')
    return {name.replace('_BT', '_T'): array[0] for name, array in self.batch(np.array([row])).items()}


class Subset(Dataset):
  """A selection of the sequences of another dataset.

  Attributes:
    dataset: the full dataset.
    rows: the indices in it of the sequences.
  """

  def __init__(self, dataset: Dataset, rows: np.ndarray):
    self.dataset, self.rows = dataset, rows

  def __len__(self) -> int:
    return len(self.rows)

  def batch(self, rows: np.ndarray) -> Batch:
    """See `Dataset.batch`."""
    return self.dataset.batch(self.rows[rows])
