"""From text to tokens: split, encoded, and memory-mapped from a cache that is written once."""

import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from absl import logging

from training.cache import cache_directory, write_whole
from training.config import ConfigError, DataConfig
from training.data.text import read_documents
from training.data.tokenizer import Encoder, load_tokenizer

Split = Literal['train', 'validation', 'test']

BLOCK = 16 * 1024
BLOCKS_IN_TURN = 20
HELD_OUT: dict[int, Split] = {10: 'validation', 20: 'test'}  # the 10th and the 20th block of every 20
LONG = 4 * 2**20  # bytes that take a tokenizer seconds
NO_ENDS = np.empty(0, int)
FORMAT = 2  # of the cached file, and of what decides its content: a new number makes every file anew


class Span(NamedTuple):
  """A contiguous piece of the text that belongs to one split: bytes start to stop."""

  split: Split
  start: int
  stop: int


class Segment(NamedTuple):
  """A contiguous run of tokens of one split: tokens start to stop.

  Its first token has no context and is never scored; `scored_bytes` is what the others stand for.
  """

  split: Split
  start: int
  stop: int
  scored_bytes: int

  @property
  def scored_tokens(self) -> int:
    """All but the first."""
    return max(self.stop - self.start - 1, 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
  """A text as tokens.

  Attributes:
    tokens: all ids in the text's order, memory-mapped.
    segments: where in `tokens` the splits lie. No sequence may cross from one to the next.
    vocab_size: ids are below it.
    checksum: sha256 of the text (and of the tokenizer, and of the documents' ends): what decides the tokens.
    end_id: the token that marks the end of a document; None: there is none.
    text_checksum: sha256 of the text alone, whatever its tokens.
  """

  tokens: np.ndarray
  segments: tuple[Segment, ...]
  vocab_size: int
  checksum: str
  end_id: int | None = None
  text_checksum: str = ''

  def of(self, split: Split) -> list[Segment]:
    """The segments of a split."""
    return [segment for segment in self.segments if segment.split == split]

  def bytes_per_token(self, split: Split) -> float:
    """Bytes of text per scored token of a split."""
    segments = self.of(split)
    return sum(s.scored_bytes for s in segments) / sum(s.scored_tokens for s in segments)


def load_corpus(config: DataConfig) -> Corpus:
  """The corpus that `config` names, from the cache if it is there.

  Raises:
    ConfigError: if the text or the tokenizer cannot be read.
  """
  documents = read_documents(config)
  text = b'\n'.join(documents)
  ends = document_ends(documents) if config.end_token else NO_ENDS
  del documents  # large
  if config.end_token and not ends.size:
    raise ConfigError(
      'data.end_token: the text is one document, so that there is no end to mark: give a file or a JSON record for '
      'each document, or leave it out'
    )
  encoder = load_tokenizer(config.tokenizer, config.end_token) if config.tokenizer else byte_encoder(config.end_token)
  checksum = text_checksum = hashlib.sha256(text).hexdigest()
  if encoder.checksum or config.end_token:
    marks = [config.end_token, hashlib.sha256(ends.astype('<i8').tobytes()).hexdigest()] if config.end_token else []
    checksum = hashlib.sha256(' '.join([checksum, encoder.checksum, *marks]).encode()).hexdigest()
  path = cache_directory() / 'tokens' / f'{checksum}.bin'
  corpus = read_tokens(path, checksum)
  if corpus is None:
    if config.tokenizer and len(text) >= LONG:
      logging.warning(
        'encoding %d MB of text with %s, once: the tokens are cached', len(text) // 10**6, config.tokenizer
      )
    corpus = encode_text(text, encoder, checksum, ends)
    if write_tokens(path, corpus):
      corpus = read_tokens(path, checksum) or corpus
  return dataclasses.replace(corpus, text_checksum=text_checksum)


def split_text(num_bytes: int) -> list[Span]:
  """Three splits, spread over the text, since its end is not like its beginning.

  In blocks of 16 KiB, of every 20 the 10th is validation and the 20th is test; of a text without 20 whole blocks
  the last 10%, halved. Neighbours of the same split are one span.
  """
  if num_bytes < BLOCKS_IN_TURN * BLOCK:
    held_out = num_bytes // 10
    validation, test = num_bytes - held_out, num_bytes - held_out // 2
    return [Span('train', 0, validation), Span('validation', validation, test), Span('test', test, num_bytes)]
  spans: list[Span] = []
  for block, start in enumerate(range(0, num_bytes, BLOCK)):
    span = Span(HELD_OUT.get(block % BLOCKS_IN_TURN + 1, 'train'), start, min(start + BLOCK, num_bytes))
    if spans and spans[-1].split == span.split:
      span = span._replace(start=spans.pop().start)
    spans.append(span)
  return spans


def document_ends(documents: Sequence[bytes]) -> np.ndarray:
  """Where in the joined text the newline lies that ends each document but the last."""
  return np.cumsum([len(document) + 1 for document in documents])[:-1] - 1


def encode_text(text: bytes, encoder: Encoder, checksum: str, ends: np.ndarray = NO_ENDS) -> Corpus:
  """Encodes each span of the text alone, so that no token crosses from one split to another.

  Args:
    text: the documents, joined by newlines.
    encoder: of its pieces.
    checksum: of the corpus.
    ends: the places of the newlines that become end tokens.
  """
  dtype = np.min_scalar_type(encoder.vocab_size - 1)
  spans = split_text(len(text))
  if encoder.reads_characters:
    spans = at_characters(spans, text)
  pieces, segments, start = [], [], 0
  for span in spans:
    ids, first_bytes = encode_span(text, span, encoder, ends)
    pieces.append(ids.astype(dtype))
    scored_bytes = max(span.stop - span.start - first_bytes, 0)
    segments.append(Segment(span.split, start, start + len(ids), scored_bytes))
    start += len(ids)
  return Corpus(np.concatenate(pieces), tuple(segments), encoder.vocab_size, checksum, encoder.end_id)


def encode_span(text: bytes, span: Span, encoder: Encoder, ends: np.ndarray) -> tuple[np.ndarray, int]:
  """The tokens of a span, each document's piece by itself, and how many bytes the first of them stands for.

  Raises:
    ConfigError: if a piece has the end token in it, which would mark an end where there is none.
  """
  inside = ends[np.searchsorted(ends, span.start) : np.searchsorted(ends, span.stop)].tolist()
  parts, counts = [], []
  for start, stop in itertools.pairwise([span.start - 1, *inside, span.stop]):
    ids, first_bytes = encoder.encode(text[start + 1 : stop], start < span.start)
    if encoder.end_id is not None and encoder.end_id in ids:
      raise ConfigError('data.end_token: the text itself has this token in it: name one that no text becomes')
    parts.append(ids)
    counts += [first_bytes] * bool(len(ids))
    if stop < span.stop:
      parts.append(np.array([encoder.end_id]))
      counts.append(1)  # the newline
  return np.concatenate(parts), next(iter(counts), 0)


def at_characters(spans: list[Span], text: bytes) -> list[Span]:
  """The spans of a UTF-8 text, each bound that lies inside a character moved to its end: by 3 bytes at most."""

  def moved(place: int) -> int:
    while place < len(text) and text[place] & 0xC0 == 0x80:  # a byte that continues a character
      place += 1
    return place

  return [span._replace(start=moved(span.start), stop=moved(span.stop)) for span in spans]


def encode_bytes(piece: bytes, opens_segment: bool) -> tuple[np.ndarray, int]:
  """Every byte is a token."""
  del opens_segment
  return np.frombuffer(piece, np.uint8), 1


def byte_encoder(end_token: str = '') -> Encoder:
  """Bytes are tokens, and with an end token 256 is that."""
  return Encoder(encode_bytes, 257, end_id=256) if end_token else Encoder(encode_bytes, 256)


def write_tokens(path: pathlib.Path, corpus: Corpus) -> bool:
  """Writes a line of JSON padded to 64 bytes, the tokens, and the sha256 of both; says whether it could."""
  header = {
    'format': FORMAT,
    'dtype': corpus.tokens.dtype.name,
    'vocab_size': corpus.vocab_size,
    'segments': corpus.segments,
    'end_id': corpus.end_id,
  }
  line = json.dumps(header).encode()
  line = line.ljust(-(len(line) + 1) // 64 * -64 - 1) + b'\n'
  digest = hashlib.sha256(line)
  digest.update(corpus.tokens.data)
  return write_whole(path, line, corpus.tokens, digest.digest())


def read_tokens(path: pathlib.Path, checksum: str) -> Corpus | None:
  """The corpus in a cached file, memory-mapped; None if the file is not there, or not as it was written."""
  try:
    with path.open('rb') as file:
      header = json.loads(file.readline())
      offset = file.tell()
    content = np.asarray(np.memmap(path, np.uint8, mode='r'))
    if header['format'] != FORMAT or hashlib.sha256(content[:-32].data).digest() != content[-32:].tobytes():
      return None
    tokens = content[offset:-32].view(header['dtype'])
    segments = tuple(Segment(*fields) for fields in header['segments'])
    return Corpus(tokens, segments, header['vocab_size'], checksum, header['end_id'])
  except (OSError, ValueError, KeyError, TypeError, RecursionError):
    return None
