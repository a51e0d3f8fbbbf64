"""Sequences by number: what training shuffles and evaluation reads in order."""

import abc
from collections.abc import Sequence

import numpy as np

from training.data.corpus import Segment

Batch = dict[str, np.ndarray]


class Source(abc.ABC):
  """A list of sequences of T inputs, T targets and T weights: 1 where the target is scored, 0 where it is not."""

  @abc.abstractmethod
  def __len__(self) -> int:
    """The number of sequences."""

  @abc.abstractmethod
  def batch(self, rows: np.ndarray) -> Batch:
    """The sequences of these numbers: inputs_BT and targets_BT (int32), weights_BT (float32).

    Where attention stays within documents also documents_BT (int32): the document, counted from 0 in each sequence,
    that an input belongs to. An end token belongs to the document that it ends.
    """

  def __getitem__(self, row: int) -> Batch:
    """One sequence: inputs_T, targets_T, weights_T."""
    if not 0 <= row < len(self):
      raise IndexError(f'row {row} of {len(self)}')
    return {name.replace('_BT', '_T'): array[0] for name, array in self.batch(np.array([row])).items()}


class Windows(Source):
  """Windows of T + 1 tokens, T apart, inside segments: each target is predicted once, with up to T tokens before it.

  The first token of a segment is nobody's target: it has no context, and is not scored.

  Attributes:
    starts: each window's first token.
    counts: its number of targets.
  """

  def __init__(
    self,
    tokens: np.ndarray,
    segments: Sequence[Segment],
    sequence_length: int,
    partial: bool,
    end_id: int | None = None,
  ):
    """Cuts the segments.

    Args:
      tokens: the ids that the segments are part of.
      segments: which of them to cut.
      sequence_length: T.
      partial: whether to keep what is left at the end of each segment, padded, its padding with weight 0.
        Evaluation does, and covers its split wholly; training does not, and all its windows are full.
      end_id: the token that ends a document, if batches are to say which document each input belongs to.
    """
    ends = [segment.stop - (1 if partial else sequence_length) for segment in segments]
    starts = [np.arange(segment.start, end, sequence_length) for segment, end in zip(segments, ends, strict=True)]
    stops = np.repeat([segment.stop for segment in segments], [len(s) for s in starts])
    self.starts = np.concatenate([*starts, np.empty(0, int)]).astype(int)
    self.counts = np.minimum(stops - 1 - self.starts, sequence_length).astype(int)
    self.sequence_length = sequence_length
    self._tokens, self._end_id = tokens, end_id

  def __len__(self) -> int:
    return len(self.starts)

  def batch(self, rows: np.ndarray) -> Batch:
    """One look-up for the whole batch, into the memory-mapped tokens."""
    starts, counts = self.starts[rows, None], self.counts[rows, None]
    offsets = np.arange(self.sequence_length + 1)
    tokens = self._tokens[starts + np.minimum(offsets, counts)].astype(np.int32)
    inside = offsets <= counts
    tokens[~inside] = 0
    batch = {'inputs_BT': tokens[:, :-1], 'targets_BT': tokens[:, 1:], 'weights_BT': inside[:, 1:].astype(np.float32)}
    if self._end_id is not None:
      ends = batch['inputs_BT'] == self._end_id
      batch['documents_BT'] = (np.cumsum(ends, axis=1) - ends).astype(np.int32)
    return batch
