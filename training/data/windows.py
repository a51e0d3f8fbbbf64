"""Cuts the segments of a tokenized text into sequences of a fixed length."""

from collections.abc import Sequence

import numpy as np

from training.data.corpus import Segment
from training.data.dataset import Batch, Dataset


class Windows(Dataset):
  """Windows of T + 1 tokens at a stride of T within segments.

  Each target is predicted once, from the tokens before it in its window, at most T.

  The first token of a segment is not a target: it has no context and is not scored.

  Attributes:
    starts: the offset of each window's first token.
    counts: the number of targets in each window.
  """

  def __init__(
    self,
    tokens: np.ndarray,
    segments: Sequence[Segment],
    sequence_length: int,
    partial: bool,
    end_id: int | None = None,
  ):
    """Cuts the segments into windows.

    Args:
      tokens: the token ids that the segments are ranges of.
      segments: the segments to cut.
      sequence_length: T.
      partial: whether to include the remainder of each segment, padded, with weight 0 for the padding. Evaluation
        includes it, so that it covers the whole split. Training does not, so that all its windows are full.
      end_id: the token that ends a document; if set, batches have documents_BT.
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
    """See `Dataset.batch`. Indexes the memory-mapped tokens once for the whole batch."""
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
