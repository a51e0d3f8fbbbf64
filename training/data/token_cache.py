"""The cache of tokenized texts: reads and writes a corpus as a file that is memory-mapped."""

import hashlib
import json
import pathlib

import numpy as np

from training.cache import try_write
from training.data.corpus import Corpus, Segment

FORMAT = 2  # of the cached file and of the tokenization that produced it; a new number invalidates all cached files


def write_corpus(path: pathlib.Path, corpus: Corpus) -> bool:
  """Writes a line of JSON padded to a multiple of 64 bytes, the tokens, and the sha256 of both.

  Returns:
    Whether the file could be written.
  """
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
  return try_write(path, line, corpus.tokens, digest.digest())


def read_corpus(path: pathlib.Path, checksum: str) -> Corpus | None:
  """Returns the corpus in a cached file, memory-mapped; None if the file does not exist or is damaged.

  Args:
    path: the cached file.
    checksum: of the corpus.
  """
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
