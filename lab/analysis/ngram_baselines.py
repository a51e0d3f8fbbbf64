"""N-gram baselines: how well n-gram models predict a split, stored with the runs of an experiment."""

from pathlib import Path

from training.data.evaluation_subset import is_partial
from training.data.loading import Data
from training.data.ngrams import NAMES, ngram_bits_per_byte
from training.data.splits import Split
from training.files import Damaged, read_json, write_sealed

BITS = 'bits_per_byte'


def path_of(directory: Path, split: str) -> Path:
  """The file that stores the baselines of a split in an experiment's directory."""
  return directory / ('yardsticks.json' if split == 'validation' else f'yardsticks_{split}.json')


def read(directory: Path, split: str, data_checksum: str | None, part: int | None = 0) -> dict[str, float] | None:
  """Bits per byte of a unigram, a bigram and a trigram model on a split of a text.

  Args:
    directory: the experiment's directory.
    split: `validation` or `test`.
    data_checksum: the checksum of the text.
    part: the part of the split that is scored; see training.data.evaluation_subset.evaluation_tokens.

  Returns:
    {'unigram': 4.43, ...}, empty for a synthetic task; None if the file is missing, damaged, written by an older
    version, or belongs to another text, split or part.
  """
  try:
    stored = read_json(path_of(directory, split), sealed=lambda value: True)
  except Damaged:
    return None
  wanted = {'data_checksum': data_checksum, 'split': split, 'part': part}
  if stored is None or data_checksum is None or any(stored.get(name) != value for name, value in wanted.items()):
    return None
  values = stored.get(BITS)
  valid = isinstance(values, dict) and set(values) <= set(NAMES) and all(_is_entropy(one) for one in values.values())
  return values if valid else None


def write_if_outdated(directory: Path, split: Split, data: Data, tokens: int = 0) -> Path:
  """Computes the baselines and writes their file, unless it exists for this text, split and part.

  Args:
    directory: the experiment's directory.
    split: `validation` or `test`.
    data: the text.
    tokens: run.final_evaluation_tokens.
  """
  path, part = path_of(directory, split), tokens if is_partial(data, tokens) else 0
  if read(directory, split, data.checksum, part) is None:
    about = {'data_checksum': data.checksum, 'split': split, 'part': part}
    write_sealed(path, {**about, BITS: ngram_bits_per_byte(data, split, tokens)})
  return path


def _is_entropy(value: object) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
