"""The part of a held-out split that a run is evaluated on: the full split, or a fixed, evenly spread subset."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from training.data.corpus import Segment
from training.data.dataset import Dataset, Subset
from training.data.loading import Data
from training.data.splits import BLOCK, Split
from training.data.windows import Windows

BATCH_SIZE = 128  # sequences whose tokens are counted at once


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluationSubset:
  """The part of a split that is evaluated. It depends only on the data and `tokens`, not on the variant or the seed.

  Attributes:
    dataset: its sequences.
    tokens: the number of scored tokens in it.
    split_tokens: the number of scored tokens in the full split.
    bytes_per_token: bytes of text per scored token; None for a synthetic task, which has no bytes.
  """

  dataset: Dataset
  tokens: int
  split_tokens: int
  bytes_per_token: float | None

  def bits_per_byte(self, nats_per_token: float) -> float | None:
    """Converts a mean loss over the scored tokens into bits per byte; None for a synthetic task."""
    return None if self.bytes_per_token is None else nats_per_token / math.log(2) / self.bytes_per_token


def evaluation_subset(data: Data, split: Split, tokens: int) -> EvaluationSubset:
  """Returns the part of a split that is evaluated: whole blocks of 16 KiB of text, or whole synthetic sequences.

  Args:
    data: from `training.data.loading.load_data`.
    split: validation or test.
    tokens: run.final_evaluation_tokens; for text, see `chosen_segments`.
  """
  dataset = data.validation if split == 'validation' else data.test
  if data.corpus is None:
    split_tokens = count_scored(dataset)
    full = tokens == 0 or tokens >= split_tokens
    count = len(dataset) if full else max(1, len(dataset) * tokens // split_tokens)
    part = dataset if count == len(dataset) else Subset(dataset, evenly_spread(len(dataset), count))
    return EvaluationSubset(part, split_tokens if part is dataset else count_scored(part), split_tokens, None)
  segments = data.corpus.segments_of(split)
  chosen = chosen_segments(segments, tokens)
  scored = sum(segment.scored_tokens for segment in chosen)
  per_token = sum(segment.scored_bytes for segment in chosen) / scored
  if len(chosen) == len(segments):
    return EvaluationSubset(dataset, scored, scored, per_token)
  split_tokens = sum(segment.scored_tokens for segment in segments)
  return EvaluationSubset(Subset(dataset, _windows_in(dataset, chosen)), scored, split_tokens, per_token)


def chosen_segments(segments: Sequence[Segment], tokens: int) -> list[Segment]:
  """Returns the segments of a split that are evaluated, by models and by n-gram baselines.

  A segment is a block of the text. Their number is computed at one token per byte, so that the same blocks are chosen
  for every tokenizer, although most tokenizers produce fewer tokens from them.
  """
  chosen = len(segments) if tokens == 0 else min(len(segments), math.ceil(tokens / BLOCK))
  return [segments[row] for row in evenly_spread(len(segments), chosen)]


def is_partial(data: Data, tokens: int) -> bool:
  """Whether run.final_evaluation_tokens=`tokens` omits a part of the held-out text."""
  splits: tuple[Split, ...] = ('validation', 'test')
  held_out = [data.corpus.segments_of(split) for split in splits] if data.corpus else []
  return any(len(chosen_segments(segments, tokens)) < len(segments) for segments in held_out)


def evaluation_tokens(result: Mapping[str, Any]) -> int | None:
  """Returns the run.final_evaluation_tokens that a result.json was evaluated with, or 0 if on the full splits.

  None for a diverged run, which was not evaluated. Results that predate this setting are on the full splits.
  """
  if result['status'] == 'diverged':
    return None
  full = all(result.get(f'{split}_tokens') == result.get(f'{split}_tokens_of') for split in ('val', 'test'))
  return 0 if full else result['final_evaluation_tokens']


def evaluated_as_configured(result: Mapping[str, Any], tokens: int) -> bool:
  """Whether a result.json was evaluated on the part of the splits that run.final_evaluation_tokens=`tokens` selects."""
  recorded = result.get('final_evaluation_tokens', tokens)
  evaluated = evaluation_tokens(result)
  return recorded == tokens or evaluated is None or (evaluated == 0 and (tokens == 0 or 0 < recorded < tokens))


def evenly_spread(count: int, chosen: int) -> np.ndarray:
  """Returns `chosen` evenly spread numbers below `count`."""
  return np.arange(chosen) * count // max(chosen, 1)


def count_scored(dataset: Dataset) -> int:
  """Returns the number of scored tokens in all sequences of a dataset."""
  from training.data.batches import evaluation_batches  # imports grain, which takes a third of a second

  return sum(int((batch['weights_BT'] > 0).sum()) for batch in evaluation_batches(dataset, BATCH_SIZE))


def _windows_in(dataset: Dataset, segments: Sequence[Segment]) -> np.ndarray:
  """Returns the numbers of the windows in these segments, in order."""
  assert isinstance(dataset, Windows)
  bounds = np.searchsorted(dataset.starts, [(segment.start, segment.stop) for segment in segments])
  return np.concatenate([np.arange(first, last) for first, last in bounds])
