"""A tokenizer.json as an encoder whose tokens are checked against the text: they must give it back, byte for byte."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from training.config import ConfigError
from training.data.reading import read_regular

BYTE_FALLBACK = re.compile(r'<0x([0-9A-F]{2})>')
METASPACE = re.compile(r'"type":"Metaspace","replacement":"(.)"')
EXAMPLE = 24  # characters around the first difference, in a message


class Encoder(NamedTuple):
  """What turns text into tokens.

  Attributes:
    encode: (piece, opens_segment) -> its token ids, and how many bytes of it the first one stands for. A piece is a
      stretch of one document; the first token of the piece that opens a segment is never scored.
    vocab_size: ids are below it.
    checksum: of what decides the ids; empty for bytes.
    end_id: the token that marks the end of a document; None: there is none.
    reads_characters: whether a piece must be whole UTF-8 characters.
  """

  encode: Callable[[bytes, bool], tuple[np.ndarray, int]]
  vocab_size: int
  checksum: str = ''
  end_id: int | None = None
  reads_characters: bool = False


class Reading(Protocol):
  """One way to turn tokens back into the bytes they stand for."""

  def restore(self, ids: list[int]) -> bytes:
    """The text of these tokens."""

  def first_bytes(self, ids: list[int], piece: bytes, opens_segment: bool) -> int | None:
    """How many bytes of the piece the first token stands for; None if the tokens do not give the piece back."""


@dataclasses.dataclass(frozen=True)
class TableReading:
  """Each token has its own bytes, one after the other.

  Attributes:
    table: token id -> bytes.
    blank_before: whether every piece begins with a blank that the text lacks, as Metaspace and add_prefix_space put it.
      They put none before a piece that begins with one, so that the two become the same tokens: accepted at the
      start of a segment alone, whose first token is not scored, whatever it stands for.
  """

  table: dict[int, bytes]
  blank_before: bool

  def restore(self, ids: list[int]) -> bytes:
    """The text of these tokens, without the blank before it."""
    return b''.join([self.table[token] for token in ids]).removeprefix(b' ' if self.blank_before else b'')

  def first_bytes(self, ids: list[int], piece: bytes, opens_segment: bool) -> int | None:
    """Exact within a character, too: a token of byte-level BPE or byte fallback may be a part of one."""
    rest = b''.join([self.table[token] for token in ids[1:]])
    whole = b''.join([self.table[token] for token in ids[:1]]) + rest
    put_before = b' ' if self.blank_before and piece else b''
    if whole != put_before + piece and not (opens_segment and self.blank_before and whole == piece):
      return None
    return len(piece) - len(rest)


@dataclasses.dataclass(frozen=True)
class DecoderReading:
  """The tokenizer's own decoder, which may put blanks between tokens or take marks away."""

  tokenizer: Any

  def restore(self, ids: list[int]) -> bytes:
    """The text of these tokens."""
    return self.tokenizer.decode(ids, skip_special_tokens=False).encode()

  def first_bytes(self, ids: list[int], piece: bytes, opens_segment: bool) -> int | None:
    """None also where the first token alone is not how the piece begins, so that its bytes cannot be told."""
    del opens_segment
    first = self.restore(ids[:1])
    return len(first) if self.restore(ids) == piece and piece.startswith(first) else None


class Tokenizer:
  """Encodes pieces of text, and checks each; keeps the readings that have given back every piece so far."""

  def __init__(self, path: str, tokenizer: Any):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # their names in a text are text
    if getattr(tokenizer.model, 'dropout', None):
      tokenizer.model.dropout = None  # it drops merges at random: every process would see other tokens
    self._path, self._tokenizer = path, tokenizer
    tables = [TableReading(table, blank) for table in token_tables(tokenizer) for blank in (False, True)]
    self._readings: list[Reading] = [*tables, DecoderReading(tokenizer)]

  def encode(self, piece: bytes, opens_segment: bool) -> tuple[np.ndarray, int]:
    """The token ids of a piece, and how many of its bytes the first one stands for.

    Raises:
      ConfigError: if no reading gives back this piece and all those before it, with an example.
    """
    try:
      ids = self._tokenizer.encode(piece.decode(), add_special_tokens=False).ids
    except Exception as error:  # the package raises no class of its own
      raise ConfigError(f'data.tokenizer: {self._path} cannot encode the text ({error}): {REMEDY}') from None
    kept, counts = [], []
    for reading in self._readings:
      count = reading.first_bytes(ids, piece, opens_segment)
      if count is not None:
        kept.append(reading)
        counts.append(count)
    if not kept:
      before, after = closest_example(piece, [reading.restore(ids) for reading in self._readings])
      raise ConfigError(
        f'data.tokenizer: {self._path} does not keep the text: {before!r} comes back as {after!r}, so its bits per '
        f'byte would be of another text: {REMEDY}'
      )
    self._readings = kept
    return np.array(ids, np.int64), counts[0]


REMEDY = 'use one that keeps every byte, as byte-level BPE does'


def load_tokenizer(path: str, end_token: str = '') -> Encoder:
  """The tokenizer of a tokenizer.json, as an encoder that refuses text which its tokens do not give back.

  Bits per byte count the bytes of the text, so they compare across tokenizers only if the tokens determine the text.
  The names of special tokens have no meaning in text: they are encoded as the characters they are.

  Args:
    path: of the file.
    end_token: the name of the token that marks the end of a document; empty: none does.

  Raises:
    ConfigError: if the file is missing or is no tokenizer, it has no such token, or the package `tokenizers` is absent.
  """
  content = read_regular('data.tokenizer', os.path.expanduser(path))
  try:
    import tokenizers
  except ImportError:
    raise ConfigError(f'data.tokenizer={path} needs a package that is not installed: pip install tokenizers') from None
  try:
    tokenizer = tokenizers.Tokenizer.from_buffer(content)
  except Exception as error:  # the package raises no class of its own
    raise ConfigError(f'data.tokenizer: {path} is not a tokenizer.json of the package tokenizers ({error})') from None
  end_id = None
  if end_token:
    end_id = tokenizer.token_to_id(end_token)
    if end_id is None:
      special = ', '.join(
        repr(token.content) for token in tokenizer.get_added_tokens_decoder().values() if token.special
      )
      raise ConfigError(
        f'data.end_token={end_token!r} is no token of {path}: its special tokens are {special or "none"}'
      )
  vocab_size = max(tokenizer.get_vocab().values(), default=0) + 1
  checksum = hashlib.sha256(content).hexdigest()
  return Encoder(Tokenizer(path, tokenizer).encode, vocab_size, checksum, end_id, reads_characters=True)


def token_tables(tokenizer: Any) -> list[dict[int, bytes]]:
  """What the tokens may stand for, each by itself: token id -> bytes.

  Of a byte-level tokenizer each character of a token is a byte. Of others a token is its characters, or, as in
  SentencePiece, with a mark (`▁`, if no other is declared) for a blank and `<0x0A>` for a byte.
  """
  declared = tokenizer.to_str()
  added = {token: made.content.encode() for token, made in tokenizer.get_added_tokens_decoder().items()}
  vocabulary = {token: name for name, token in tokenizer.get_vocab().items() if token not in added}
  if '"type":"ByteLevel"' in declared:
    alphabet = byte_level_alphabet()
    return [{token: byte_level_bytes(name, alphabet) for token, name in vocabulary.items()} | added]
  plain = {token: name.encode() for token, name in vocabulary.items()}
  marks = dict.fromkeys(['▁', *METASPACE.findall(declared)])
  marked = [{token: sentencepiece_bytes(name, mark) for token, name in vocabulary.items()} for mark in marks]
  return [table | added for table in (plain, *marked)]


def byte_level_alphabet() -> dict[str, int]:
  """How GPT-2's byte-level BPE writes bytes: a printable character as itself, the others from U+0100 on."""
  printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  others = sorted(set(range(0x100)) - set(printable))
  return {chr(byte): byte for byte in printable} | {chr(0x100 + k): byte for k, byte in enumerate(others)}


def byte_level_bytes(name: str, alphabet: dict[str, int]) -> bytes:
  """The bytes of a byte-level token; a name that is none, as of an unknown token, stands for itself."""
  return bytes(alphabet[character] for character in name) if alphabet.keys() >= set(name) else name.encode()


def sentencepiece_bytes(name: str, mark: str) -> bytes:
  """The bytes of a SentencePiece token, in which `mark` stands for a blank."""
  byte = BYTE_FALLBACK.fullmatch(name)
  return bytes.fromhex(byte[1]) if byte else name.replace(mark, ' ').encode()


def closest_example(piece: bytes, restored: list[bytes]) -> tuple[str, str]:
  """Where the text and the most faithful of what it came back as differ first: a few characters of both."""
  text = piece.decode()

  def same(back: str) -> int:
    length = min(len(text), len(back))
    return next((k for k in range(length) if text[k] != back[k]), length)

  back = max((content.decode('utf-8', 'replace') for content in restored), key=same)
  start = max(text.rfind(' ', 0, same(back)) + 1, same(back) - EXAMPLE, 0)
  end = same(back) + EXAMPLE
  return text[start:end], back[start:end]
