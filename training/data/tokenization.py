"""Turns documents into a corpus: applies the tokenizer to each split of the text, and caches the tokens."""

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence

import numpy as np
from absl import logging

from training.cache import cache_directory
from training.config import ConfigError, DataConfig
from training.data.corpus import Corpus, Segment
from training.data.documents import read_documents
from training.data.splits import Span, align_to_characters, split_text
from training.data.token_cache import read_corpus, write_corpus
from training.data.tokenizer import Encoder, byte_encoder, load_tokenizer

LONG = 4 * 2**20  # bytes; tokenizing more takes seconds, so it is logged
NO_ENDS = np.empty(0, int)


def load_corpus(config: DataConfig) -> Corpus:
  """Returns the corpus that `config` specifies, from the cache if possible.

  Raises:
    ConfigError: if the text or the tokenizer cannot be read.
  """
  documents = read_documents(config)
  text = b'\n'.join(documents)
  ends = document_ends(documents) if config.end_token else NO_ENDS
  del documents  # large
  if config.end_token and not ends.size:
    raise ConfigError(
      'data.end_token: the text is a single document, so there is no document end to mark: use one file or one JSON '
      'record per document, or omit data.end_token'
    )
  encoder = load_tokenizer(config.tokenizer, config.end_token) if config.tokenizer else byte_encoder(config.end_token)
  checksum = text_checksum = hashlib.sha256(text).hexdigest()
  if encoder.checksum or config.end_token:
    marks = [config.end_token, hashlib.sha256(ends.astype('<i8').tobytes()).hexdigest()] if config.end_token else []
    checksum = hashlib.sha256(' '.join([checksum, encoder.checksum, *marks]).encode()).hexdigest()
  path = cache_directory() / 'tokens' / f'{checksum}.bin'
  corpus = read_corpus(path, checksum)
  if corpus is None:
    if config.tokenizer and len(text) >= LONG:
      logging.warning(
        'tokenizing %d MB of text with %s; the tokens are cached for later runs', len(text) // 10**6, config.tokenizer
      )
    corpus = encode_text(text, encoder, checksum, ends)
    if write_corpus(path, corpus):
      corpus = read_corpus(path, checksum) or corpus
  return dataclasses.replace(corpus, text_checksum=text_checksum)


def document_ends(documents: Sequence[bytes]) -> np.ndarray:
  """Returns the offsets, in the joined text, of the newline after each document except the last."""
  return np.cumsum([len(document) + 1 for document in documents])[:-1] - 1


def encode_text(text: bytes, encoder: Encoder, checksum: str, ends: np.ndarray = NO_ENDS) -> Corpus:
  """Encodes each span of the text separately, so that no token crosses from one split to another.

  Args:
    text: the documents, joined by newlines.
    encoder: encodes a piece of the text.
    checksum: of the corpus.
    ends: the offsets of the newlines that become end tokens.
  """
  dtype = np.min_scalar_type(encoder.vocab_size - 1)
  spans = split_text(len(text))
  if encoder.needs_characters:
    spans = align_to_characters(spans, text)
  pieces, segments, start = [], [], 0
  for span in spans:
    ids, first_bytes = encode_span(text, span, encoder, ends)
    pieces.append(ids.astype(dtype))
    scored_bytes = max(span.stop - span.start - first_bytes, 0)
    segments.append(Segment(span.split, start, start + len(ids), scored_bytes))
    start += len(ids)
  return Corpus(np.concatenate(pieces), tuple(segments), encoder.vocab_size, checksum, encoder.end_id)


def encode_span(text: bytes, span: Span, encoder: Encoder, ends: np.ndarray) -> tuple[np.ndarray, int]:
  """Encodes a span. The parts of it that belong to different documents are encoded separately.

  Returns:
    The token ids, and the number of bytes that the first token stands for.

  Raises:
    ConfigError: if the encoded text contains the end token, which would mark an end where there is none.
  """
  inside = ends[np.searchsorted(ends, span.start) : np.searchsorted(ends, span.stop)].tolist()
  parts, counts = [], []
  for start, stop in itertools.pairwise([span.start - 1, *inside, span.stop]):
    ids, first_bytes = encoder.encode(text[start + 1 : stop], start < span.start)
    if encoder.end_id is not None and encoder.end_id in ids:
      raise ConfigError(
        'data.end_token: the tokenized text contains this token: choose one that does not occur in the text'
      )
    parts.append(ids)
    counts += [first_bytes] * bool(len(ids))
    if stop < span.stop:
      parts.append(np.array([encoder.end_id]))
      counts.append(1)  # the newline
  return np.concatenate(parts), next(iter(counts), 0)
