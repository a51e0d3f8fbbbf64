"""Splits a text into train, validation and test, in blocks spread evenly over it."""

from typing import Literal, NamedTuple

Split = Literal['train', 'validation', 'test']

BLOCK = 16 * 1024  # bytes
PERIOD = 20  # blocks
HELD_OUT: dict[int, Split] = {10: 'validation', 20: 'test'}  # the 10th and the 20th block of every 20


class Span(NamedTuple):
  """A contiguous range of the text that belongs to one split: bytes `start` to `stop`."""

  split: Split
  start: int
  stop: int


def split_text(num_bytes: int) -> list[Span]:
  """Splits a text of this size, each split spread over the whole text, because its end may differ from its beginning.

  Of every 20 blocks of 16 KiB, the 10th is validation and the 20th is test. Of a text with fewer than 20 full blocks,
  the last 10% are held out, half for each. Adjacent blocks of the same split form one span.
  """
  if num_bytes < PERIOD * BLOCK:
    held_out = num_bytes // 10
    validation, test = num_bytes - held_out, num_bytes - held_out // 2
    return [Span('train', 0, validation), Span('validation', validation, test), Span('test', test, num_bytes)]
  spans: list[Span] = []
  for block, start in enumerate(range(0, num_bytes, BLOCK)):
    span = Span(HELD_OUT.get(block % PERIOD + 1, 'train'), start, min(start + BLOCK, num_bytes))
    if spans and spans[-1].split == span.split:
      span = span._replace(start=spans.pop().start)
    spans.append(span)
  return spans


def align_to_characters(spans: list[Span], text: bytes) -> list[Span]:
  """Moves each bound that is inside a UTF-8 character to the end of that character, by at most 3 bytes."""

  def align(offset: int) -> int:
    while offset < len(text) and text[offset] & 0xC0 == 0x80:  # a continuation byte
      offset += 1
    return offset

  return [span._replace(start=align(span.start), stop=align(span.stop)) for span in spans]
