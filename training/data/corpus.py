"""A tokenized text, and the segments of it that belong to each split."""

import dataclasses
from typing import NamedTuple

import numpy as np

from training.data.splits import Split


class Segment(NamedTuple):
  """A contiguous range of tokens that belongs to one split: tokens `start` to `stop`.

  The first token of a segment has no context and is never scored; `scored_bytes` is the number of bytes of text that
  the other tokens stand for.
  """

  split: Split
  start: int
  stop: int
  scored_bytes: int

  @property
  def scored_tokens(self) -> int:
    """The number of tokens except the first."""
    return max(self.stop - self.start - 1, 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
  """A text as tokens.

  Attributes:
    tokens: all token ids in the order of the text, memory-mapped if cached.
    segments: the ranges of `tokens` that belong to each split. No sequence crosses from one segment to the next.
    vocab_size: all ids are below it.
    checksum: sha256 of everything that determines the tokens: the text, the tokenizer, and the document ends.
    end_id: the token that marks the end of a document; None if ends are not marked.
    text_checksum: sha256 of the text alone.
  """

  tokens: np.ndarray
  segments: tuple[Segment, ...]
  vocab_size: int
  checksum: str
  end_id: int | None = None
  text_checksum: str = ''

  def segments_of(self, split: Split) -> list[Segment]:
    """Returns the segments of a split."""
    return [segment for segment in self.segments if segment.split == split]

  def bytes_per_token(self, split: Split) -> float:
    """Bytes of text per scored token of a split."""
    segments = self.segments_of(split)
    return sum(s.scored_bytes for s in segments) / sum(s.scored_tokens for s in segments)
