"""Encoders from text to tokens: bytes, or a tokenizer.json that is checked to be lossless on the text."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from training.config import ConfigError
from training.data.regular_files import read_regular_file

BYTE_FALLBACK = re.compile(r'<0x([0-9A-F]{2})>')
METASPACE = re.compile(r'"type":"Metaspace","replacement":"(.)"')
EXAMPLE = 24  # characters on each side of the first difference, in a message
REMEDY = 'use a lossless tokenizer, such as byte-level BPE'


class Encoder(NamedTuple):
  """Turns text into tokens.

  Attributes:
    encode: (piece, starts_segment) -> the piece's token ids, and the number of its bytes that the first token stands
      for. A piece is a contiguous part of one document. If it starts a segment, its first token is never scored.
    vocab_size: all ids are below it.
    checksum: of the tokenizer; empty for bytes.
    end_id: the token that marks the end of a document; None if ends are not marked.
    needs_characters: whether a piece must consist of whole UTF-8 characters.
  """

  encode: Callable[[bytes, bool], tuple[np.ndarray, int]]
  vocab_size: int
  checksum: str = ''
  end_id: int | None = None
  needs_characters: bool = False


def encode_bytes(piece: bytes, starts_segment: bool) -> tuple[np.ndarray, int]:
  """Encodes each byte as a token."""
  del starts_segment
  return np.frombuffer(piece, np.uint8), 1


def byte_encoder(end_token: str = '') -> Encoder:
  """Returns the encoder whose tokens are bytes; with an end token, that is id 256."""
  return Encoder(encode_bytes, 257, end_id=256) if end_token else Encoder(encode_bytes, 256)


class Detokenizer(Protocol):
  """Turns tokens back into the bytes that they stand for."""

  def detokenize(self, ids: list[int]) -> bytes:
    """The text of these tokens."""

  def first_bytes(self, ids: list[int], piece: bytes, starts_segment: bool) -> int | None:
    """The number of bytes of the piece that its first token stands for; None if the tokens do not restore the piece."""


@dataclasses.dataclass(frozen=True)
class TableDetokenizer:
  """Concatenates the bytes of the tokens, each of which stands for the same bytes everywhere.

  Attributes:
    table: token id -> bytes.
    prefix_space: whether the tokens of every piece begin with a space that is not in the text, as Metaspace and
      add_prefix_space add it. They add none to a piece that already begins with a space, so pieces with and without
      that space have the same tokens. This is accepted only at the start of a segment, whose first token is not scored.
  """

  table: dict[int, bytes]
  prefix_space: bool

  def detokenize(self, ids: list[int]) -> bytes:
    """The text of these tokens, without the added space."""
    return b''.join([self.table[token] for token in ids]).removeprefix(b' ' if self.prefix_space else b'')

  def first_bytes(self, ids: list[int], piece: bytes, starts_segment: bool) -> int | None:
    """See `Detokenizer`. Also exact if the first token (of byte-level BPE or byte fallback) is part of a character."""
    rest = b''.join([self.table[token] for token in ids[1:]])
    whole = b''.join([self.table[token] for token in ids[:1]]) + rest
    prefix = b' ' if self.prefix_space and piece else b''
    if whole != prefix + piece and not (starts_segment and self.prefix_space and whole == piece):
      return None
    return len(piece) - len(rest)


@dataclasses.dataclass(frozen=True)
class BuiltInDetokenizer:
  """Applies the tokenizer's own decoder, which may insert spaces between tokens or remove markers."""

  tokenizer: Any

  def detokenize(self, ids: list[int]) -> bytes:
    """The text of these tokens."""
    return self.tokenizer.decode(ids, skip_special_tokens=False).encode()

  def first_bytes(self, ids: list[int], piece: bytes, starts_segment: bool) -> int | None:
    """See `Detokenizer`. Also None if the piece does not begin with the first token decoded by itself."""
    del starts_segment
    first = self.detokenize(ids[:1])
    return len(first) if self.detokenize(ids) == piece and piece.startswith(first) else None


class CheckedTokenizer:
  """Encodes pieces of text and checks that the tokens determine the text.

  One of several detokenizers must restore all pieces. Those that fail on a piece are not tried again.
  """

  def __init__(self, path: str, tokenizer: Any):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # the names of special tokens in a text are ordinary text
    if getattr(tokenizer.model, 'dropout', None):
      tokenizer.model.dropout = None  # it drops merges at random: the tokens would differ between processes
    self._path, self._tokenizer = path, tokenizer
    tables = [TableDetokenizer(table, space) for table in token_tables(tokenizer) for space in (False, True)]
    self._detokenizers: list[Detokenizer] = [*tables, BuiltInDetokenizer(tokenizer)]

  def encode(self, piece: bytes, starts_segment: bool) -> tuple[np.ndarray, int]:
    """Returns the token ids of a piece, and the number of its bytes that the first token stands for.

    Args:
      piece: UTF-8 text.
      starts_segment: whether the piece starts a segment, whose first token is never scored.

    Raises:
      ConfigError: if no detokenizer restores this piece and all those before it; the message has an example.
    """
    try:
      ids = self._tokenizer.encode(piece.decode(), add_special_tokens=False).ids
    except Exception as error:  # the package raises plain Exception
      raise ConfigError(f'data.tokenizer: {self._path} cannot encode the text ({error}): {REMEDY}') from None
    lossless, counts = [], []
    for detokenizer in self._detokenizers:
      count = detokenizer.first_bytes(ids, piece, starts_segment)
      if count is not None:
        lossless.append(detokenizer)
        counts.append(count)
    if not lossless:
      before, after = closest_example(piece, [detokenizer.detokenize(ids) for detokenizer in self._detokenizers])
      raise ConfigError(
        f'data.tokenizer: {self._path} is not lossless: {before!r} is decoded as {after!r}, so its bits per byte would '
        f'be those of a different text: {REMEDY}'
      )
    self._detokenizers = lossless
    return np.array(ids, np.int64), counts[0]


def load_tokenizer(path: str, end_token: str = '') -> Encoder:
  """Loads a tokenizer.json as an encoder that raises ConfigError for text which its tokens do not restore.

  Bits per byte count the bytes of the text, so they are comparable across tokenizers only if the tokens determine the
  text. The names of special tokens in a text are encoded as ordinary characters.

  Args:
    path: the tokenizer.json.
    end_token: the name of the token that marks the end of a document; empty if ends are not marked.

  Raises:
    ConfigError: if the file is not a readable tokenizer.json, has no token of this name, or the package `tokenizers`
      is not installed.
  """
  content = read_regular_file('data.tokenizer', os.path.expanduser(path))
  try:
    import tokenizers
  except ImportError:
    raise ConfigError(f'data.tokenizer={path} needs a package that is not installed: pip install tokenizers') from None
  try:
    tokenizer = tokenizers.Tokenizer.from_buffer(content)
  except Exception as error:  # the package raises plain Exception
    raise ConfigError(f'data.tokenizer: {path} is not a tokenizer.json of the package tokenizers ({error})') from None
  end_id = None
  if end_token:
    end_id = tokenizer.token_to_id(end_token)
    if end_id is None:
      special = ', '.join(
        repr(token.content) for token in tokenizer.get_added_tokens_decoder().values() if token.special
      )
      raise ConfigError(
        f'data.end_token={end_token!r} is not a token of {path}: its special tokens are {special or "none"}'
      )
  vocab_size = max(tokenizer.get_vocab().values(), default=0) + 1
  checksum = hashlib.sha256(content).hexdigest()
  return Encoder(CheckedTokenizer(path, tokenizer).encode, vocab_size, checksum, end_id, needs_characters=True)


def token_tables(tokenizer: Any) -> list[dict[int, bytes]]:
  """Returns candidate tables (token id -> bytes) of the bytes that each token stands for.

  In a byte-level tokenizer, each character of a token's name stands for a byte. In others, a token stands for its name,
  or for its name as in SentencePiece, with a marker (`▁` or the declared one) for a space and `<0x0A>` for a byte.
  """
  declared = tokenizer.to_str()
  added = {token: entry.content.encode() for token, entry in tokenizer.get_added_tokens_decoder().items()}
  vocabulary = {token: name for name, token in tokenizer.get_vocab().items() if token not in added}
  if '"type":"ByteLevel"' in declared:
    alphabet = byte_level_alphabet()
    return [{token: byte_level_bytes(name, alphabet) for token, name in vocabulary.items()} | added]
  plain = {token: name.encode() for token, name in vocabulary.items()}
  markers = dict.fromkeys(['▁', *METASPACE.findall(declared)])
  spaced = [{token: sentencepiece_bytes(name, marker) for token, name in vocabulary.items()} for marker in markers]
  return [table | added for table in (plain, *spaced)]


def byte_level_alphabet() -> dict[str, int]:
  """Maps characters to bytes as GPT-2's byte-level BPE: printable bytes are themselves, others start at U+0100."""
  printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  others = sorted(set(range(0x100)) - set(printable))
  return {chr(byte): byte for byte in printable} | {chr(0x100 + k): byte for k, byte in enumerate(others)}


def byte_level_bytes(name: str, alphabet: dict[str, int]) -> bytes:
  """The bytes of a byte-level token; a name with other characters, such as an unknown token, stands for itself."""
  return bytes(alphabet[character] for character in name) if alphabet.keys() >= set(name) else name.encode()


def sentencepiece_bytes(name: str, marker: str) -> bytes:
  """The bytes of a SentencePiece token, in whose name `marker` stands for a space."""
  byte = BYTE_FALLBACK.fullmatch(name)
  return bytes.fromhex(byte[1]) if byte else name.replace(marker, ' ').encode()


def closest_example(piece: bytes, restored: list[bytes]) -> tuple[str, str]:
  """Returns excerpts of the text and of the closest decoded text, around the first difference between them."""
  text = piece.decode()

  def common(other: str) -> int:
    length = min(len(text), len(other))
    return next((k for k in range(length) if text[k] != other[k]), length)

  best = max((content.decode('utf-8', 'replace') for content in restored), key=common)
  start = max(text.rfind(' ', 0, common(best)) + 1, common(best) - EXAMPLE, 0)
  end = common(best) + EXAMPLE
  return text[start:end], best[start:end]
