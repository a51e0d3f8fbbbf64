"""The part of a held-out split that a run's result is measured on: all of it, or a fixed, evenly spread subset."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from training.data.corpus import BLOCK, Segment, Split
from training.data.sources import Batch, Source, Windows

if TYPE_CHECKING:
  from training.data.loading import Data

COUNTED_TOGETHER = 128  # sequences


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
  """What is scored of a split. It depends on the data and on the number of tokens alone: not on a variant or a seed.

  Attributes:
    source: its sequences.
    tokens: scored tokens of these.
    of: scored tokens of the whole split.
    bytes_per_token: bytes of text for each scored token; None for a synthetic task, which has no bytes.
  """

  source: Source
  tokens: int
  of: int
  bytes_per_token: float | None

  def bits_per_byte(self, nats_per_token: float) -> float | None:
    """Converts a mean loss over the scored tokens into bits per byte; None where there are no bytes."""
    return None if self.bytes_per_token is None else nats_per_token / math.log(2) / self.bytes_per_token


class Subset(Source):
  """Some sequences of another source."""

  def __init__(self, source: Source, rows: np.ndarray):
    self._source, self._rows = source, rows

  def __len__(self) -> int:
    return len(self._rows)

  def batch(self, rows: np.ndarray) -> Batch:
    """See `Source.batch`."""
    return self._source.batch(self._rows[rows])


def held_out(data: 'Data', split: Split, tokens: int) -> HeldOut:
  """What is scored of `validation` or `test`, by whole segments: blocks of 16 KiB of text, or synthetic sequences.

  Args:
    data: from `training.data.loading.load`.
    split: which.
    tokens: run.final_evaluation_tokens; see `chosen_segments` for text.
  """
  source = data.validation if split == 'validation' else data.test
  if data.corpus is None:
    of = count_scored(source)
    chosen = len(source) if tokens == 0 or tokens >= of else max(1, len(source) * tokens // of)
    part = source if chosen == len(source) else Subset(source, evenly_spread(len(source), chosen))
    return HeldOut(part, of if part is source else count_scored(part), of, None)
  whole = data.corpus.of(split)
  segments = chosen_segments(whole, tokens)
  scored = sum(segment.scored_tokens for segment in segments)
  per_token = sum(segment.scored_bytes for segment in segments) / scored
  if len(segments) == len(whole):
    return HeldOut(source, scored, scored, per_token)
  of = sum(segment.scored_tokens for segment in whole)
  return HeldOut(Subset(source, _windows_of(source, segments)), scored, of, per_token)


def chosen_segments(segments: Sequence[Segment], tokens: int) -> list[Segment]:
  """The segments of a split that are scored, by models and by n-grams.

  A segment is a block of the text. Their number counts a token for each byte, so that they are the same ones whatever
  the tokenizer, whose tokens are fewer.
  """
  chosen = len(segments) if tokens == 0 else min(len(segments), math.ceil(tokens / BLOCK))
  return [segments[row] for row in evenly_spread(len(segments), chosen)]


def is_part(data: 'Data', tokens: int) -> bool:
  """Whether run.final_evaluation_tokens=`tokens` leaves out any of the held-out text."""
  splits: tuple[Split, ...] = ('validation', 'test')
  held = [data.corpus.of(split) for split in splits] if data.corpus else []
  return any(len(chosen_segments(segments, tokens)) < len(segments) for segments in held)


def part_of(result: Mapping[str, Any]) -> int | None:
  """What a result.json was measured on: run.final_evaluation_tokens, or 0 if that was all of the splits.

  None: nothing, since the run diverged. Results from before there was a bound were measured on all.
  """
  if result['status'] == 'diverged':
    return None
  whole = all(result.get(f'{split}_tokens') == result.get(f'{split}_tokens_of') for split in ('val', 'test'))
  return 0 if whole else result['final_evaluation_tokens']


def evaluated_as_asked(result: Mapping[str, Any], tokens: int) -> bool:
  """Whether a result.json was measured on the part of the splits that run.final_evaluation_tokens=`tokens` asks for."""
  before = result.get('final_evaluation_tokens', tokens)
  return before == tokens or part_of(result) is None or (part_of(result) == 0 and (tokens == 0 or 0 < before < tokens))


def evenly_spread(count: int, chosen: int) -> np.ndarray:
  """Which `chosen` ones of `count`."""
  return np.arange(chosen) * count // max(chosen, 1)


def count_scored(source: Source) -> int:
  """The scored tokens of all sequences of a source."""
  from training.data.loading import evaluation_batches  # grain takes a third of a second to import

  return sum(int((batch['weights_BT'] > 0).sum()) for batch in evaluation_batches(source, COUNTED_TOGETHER))


def _windows_of(source: Source, segments: Sequence[Segment]) -> np.ndarray:
  """The windows that lie in these segments, in order."""
  assert isinstance(source, Windows)
  bounds = np.searchsorted(source.starts, [(segment.start, segment.stop) for segment in segments])
  return np.concatenate([np.arange(first, last) for first, last in bounds])
