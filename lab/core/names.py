"""Names of experiments and variants, each of which is a folder: safe ones, and those made of what was changed."""

import hashlib
import re
from typing import Any

from lab.core.experiment import Changes
from training.config import ConfigError

SAFE_NAME = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_.=+-]*')
LONGEST = 200
SHORTENED = 80  # characters of a name that is made shorter, before its checksum
# What else lies in <workdir>/<experiment>/ and in <workdir>/.
BESIDE_VARIANTS = re.compile(
  r'tuning|figures|slurm|lock|results\.csv|summary\.json|report\.html|verdicts\..*|tuned\.csv|yardsticks.*\.json|seed_[0-9]+',
  re.I,
)
BESIDE_EXPERIMENTS = re.compile(r'tuning|reproduce|compare|gradients|full|seed_[0-9]+', re.I)


def check_variant_name(name: str) -> None:
  """Raises ConfigError for a name that could leave its experiment's folder, or is that of something else in it."""
  _check(name, BESIDE_VARIANTS, 'a variant')


def check_experiment_name(name: str) -> None:
  """Raises ConfigError for a name that could leave the work directory, or is that of something else in it."""
  _check(name, BESIDE_EXPERIMENTS, 'an experiment')


def _check(name: str, taken: re.Pattern[str], kind: str) -> None:
  if not SAFE_NAME.fullmatch(name) or len(name) > LONGEST:
    raise ConfigError(
      f'the name {name!r} would be that of a folder: give one of up to {LONGEST} letters, digits and _ . = + - '
      'with --name='
    )
  if taken.fullmatch(name):
    raise ConfigError(f'the name {name!r} cannot be that of {kind}: it is one of our own files or folders')


def name_of(changes: Changes, otherwise: str = 'default') -> str:
  """A name for what was changed: 'norm_placement=post+learning_rate=0.003'.

  What a folder's name cannot have, as the slashes of a path, becomes a dash, of a path only the last two parts are
  kept, and a long name is cut; a checksum of all that was changed then tells it from others.
  """
  name = '+'.join(f'{path.rpartition(".")[2]}={_spell(value)}' for path, value in changes.items()) or otherwise
  if SAFE_NAME.fullmatch(name) and len(name) <= LONGEST:
    return name
  short = '+'.join(f'{path.rpartition(".")[2]}={_slug(_spell(value))}' for path, value in changes.items())
  return f'{short[:SHORTENED]}-{checksum(repr(sorted(changes.items())))}'


def checksum(text: str) -> str:
  """Eight hexadecimal digits."""
  return hashlib.sha256(text.encode('utf8', 'surrogateescape')).hexdigest()[:8]


def _slug(text: str) -> str:
  last = '/'.join(text.rstrip('/').split('/')[-2:])
  return re.sub(r'[^A-Za-z0-9_.=+]+', '-', last).strip('-.')


def _spell(value: Any) -> str:
  if isinstance(value, float):
    short = f'{value:g}'
    return short if float(short) == value else repr(value)
  return str(value)
