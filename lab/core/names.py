"""Validates and generates the names of experiments and variants, which are also folder names."""

import hashlib
import re
from typing import Any

from lab.core.experiment import Changes
from training.config import ConfigError

SAFE_NAME = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_.=+-]*')
MAX_LENGTH = 200
SHORTENED_LENGTH = 80  # characters of a shortened name, without its checksum
# Other files and folders in <workdir>/<experiment>/ and in <workdir>/.
RESERVED_IN_EXPERIMENT = re.compile(
  r'tuning|figures|slurm|lock|results\.csv|summary\.json|report\.html|verdicts\..*|tuned\.csv|yardsticks.*\.json|seed_[0-9]+',
  re.I,
)
RESERVED_IN_WORKDIR = re.compile(r'tuning|reproduce|compare|gradients|full|seed_[0-9]+', re.I)


def check_variant_name(name: str) -> None:
  """Raises ConfigError if the name is not a valid folder name, or is reserved for another file of an experiment."""
  _check(name, RESERVED_IN_EXPERIMENT, 'a variant')


def check_experiment_name(name: str) -> None:
  """Raises ConfigError if the name is not a valid folder name, or is reserved for another folder of the workdir."""
  _check(name, RESERVED_IN_WORKDIR, 'an experiment')


def _check(name: str, reserved: re.Pattern[str], kind: str) -> None:
  if not SAFE_NAME.fullmatch(name) or len(name) > MAX_LENGTH:
    raise ConfigError(
      f'the name {name!r} is not a valid folder name: use up to {MAX_LENGTH} letters, digits and _ . = + -, and start '
      'with a letter, a digit or _'
    )
  if reserved.fullmatch(name):
    raise ConfigError(f'the name {name!r} cannot be used for {kind}: BlockLab writes a file or folder with this name')


def name_from_changes(changes: Changes, default: str = 'default') -> str:
  """A name generated from config changes: 'connection=post+learning_rate=0.003'; the default if there are none.

  If this is not a valid folder name, invalid characters become dashes, paths are reduced to their last two parts, the
  name is shortened, and a checksum of the changes makes it unique.
  """
  name = '+'.join(f'{path.rpartition(".")[2]}={_format_value(value)}' for path, value in changes.items()) or default
  if SAFE_NAME.fullmatch(name) and len(name) <= MAX_LENGTH:
    return name
  safe = '+'.join(f'{path.rpartition(".")[2]}={_slug(_format_value(value))}' for path, value in changes.items())
  return f'{safe[:SHORTENED_LENGTH]}-{checksum(repr(sorted(changes.items())))}'


def checksum(text: str) -> str:
  """A checksum of eight hexadecimal digits."""
  return hashlib.sha256(text.encode('utf8', 'surrogateescape')).hexdigest()[:8]


def _slug(text: str) -> str:
  last_parts = '/'.join(text.rstrip('/').split('/')[-2:])
  return re.sub(r'[^A-Za-z0-9_.=+]+', '-', last_parts).strip('-.')


def _format_value(value: Any) -> str:
  if isinstance(value, float):
    short = f'{value:g}'
    return short if float(short) == value else repr(value)
  return str(value)
