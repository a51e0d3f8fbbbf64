"""tuned.csv: the results of a grid of learning rates, and the rate that was chosen for each variant.

The file begins with its provenance, one entry per line, such as `# command: "python train.py --tune"`; then it has one
row per run. If a copy is at experiments/tuned/<experiment>.csv, commands with the same settings use these rates.
"""

import csv
import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.analysis import wording
from training.code_version import DIGEST, describe_code
from training.config import Config, ConfigError, with_present_names
from training.files import Damaged, write_atomically
from training.run_files.result import STATUSES


@dataclasses.dataclass(frozen=True)
class GridPoint:
  """One run of the grid.

  Attributes:
    variant, learning_rate, warmup_steps, seed: the run.
    status: `completed`, `diverged` or `failed_to_learn`.
    final_loss: the validation loss after the last step; None if the run diverged.
    counted_loss: the loss that the choice is based on: `final_loss`, but at least the unigram entropy if the run failed
      to learn, and the loss at the initial values if it diverged.
    unit: the unit of both losses.
    chosen: whether this learning rate and warm-up were chosen for the variant.
  """

  variant: str
  learning_rate: float
  warmup_steps: int
  seed: int
  status: str
  final_loss: float | None
  counted_loss: float
  unit: str
  chosen: bool = False

  @property
  def setting(self) -> tuple[float, int]:
    """The learning rate and warm-up."""
    return self.learning_rate, self.warmup_steps


SEAL = '# sha256: '  # starts the line with the checksum of all other lines
COLUMNS = tuple(field.name for field in dataclasses.fields(GridPoint))


@dataclasses.dataclass(frozen=True)
class Tuning:
  """The contents of a tuned.csv.

  Attributes:
    path: the file.
    about: its provenance: command, settings, versions, device, data checksum and so on.
    points: every run of the grid.
  """

  path: Path
  about: Mapping[str, Any]
  points: tuple[GridPoint, ...]

  @property
  def chosen(self) -> dict[str, tuple[float, int]]:
    """The learning rate and warm-up chosen for each variant."""
    return {point.variant: point.setting for point in self.points if point.chosen}

  @property
  def seeds(self) -> list[int]:
    """The tuning seeds."""
    return sorted({point.seed for point in self.points})

  @property
  def learning_rates(self) -> list[float]:
    """The learning rates of the grid."""
    return sorted({point.learning_rate for point in self.points})

  def of(self, variant: str) -> list[GridPoint]:
    """The points of a variant."""
    return [point for point in self.points if point.variant == variant]


def mark_chosen(points: Iterable[GridPoint]) -> tuple[GridPoint, ...]:
  """Sets `chosen` for each variant's setting with the lowest mean counted loss; of equal ones, for the first."""
  by_setting: dict[str, dict[tuple[float, int], list[float]]] = {}
  points = list(points)
  for point in points:
    by_setting.setdefault(point.variant, {}).setdefault(point.setting, []).append(point.counted_loss)
  best = {
    variant: min(losses, key=lambda setting: math.fsum(losses[setting]) / len(losses[setting]))
    for variant, losses in by_setting.items()
  }
  return tuple(dataclasses.replace(point, chosen=point.setting == best[point.variant]) for point in points)


def write_tuning(tuning: Tuning) -> Path:
  """Writes a tuned.csv that `read_tuning` reads back unchanged."""
  head = ''.join(f'# {name}: {json.dumps(value)}\n' for name, value in tuning.about.items())
  text = io.StringIO()
  rows = csv.DictWriter(text, COLUMNS, lineterminator='\n')
  rows.writeheader()
  rows.writerows(dataclasses.asdict(point) for point in tuning.points)
  return write_atomically(tuning.path, head, f'{SEAL}"{_checksum(head + text.getvalue())}"\n', text.getvalue())


def read_tuning(path: Path) -> Tuning | None:
  """Reads a tuned.csv; returns None if it does not exist.

  Raises:
    Damaged: if its checksum is wrong, a number has the wrong type or range, the variants have different grids, or the
      choice does not follow from the numbers. Older versions wrote no checksum.
    ConfigError: if it cannot be read.
  """
  try:
    text = path.read_text('utf8')
  except (FileNotFoundError, NotADirectoryError):
    return None
  except PermissionError:
    raise ConfigError(f'{path} cannot be read (permission denied): choose another --workdir') from None
  except UnicodeDecodeError as error:
    raise _damaged(path, str(error)) from None
  except OSError as error:
    raise ConfigError(f'{path} cannot be read: {error.strerror}') from None
  seals = [line for line in text.splitlines(keepends=True) if line.startswith(SEAL)]
  text = ''.join(line for line in text.splitlines(keepends=True) if not line.startswith(SEAL))
  if seals and seals != [f'{SEAL}"{_checksum(text)}"\n']:
    raise _damaged(path, 'its content does not match its checksum')
  lines = text.splitlines()
  head = [line.removeprefix('# ').partition(': ') for line in lines if line.startswith('# ')]
  try:
    about = {name: json.loads(value) for name, _, value in head}
    Config.from_flat(about['settings'])
    about['variants'] = {name: with_present_names(changes) for name, changes in about['variants'].items()}
    about['settings'] = with_present_names(about['settings'])
    dict(about['variants']), about['data_checksum']
    points = [_parse(row) for row in csv.DictReader(line for line in lines if not line.startswith('#'))]
  except KeyError as error:
    raise _damaged(path, f'it has no {error.args[0]}') from None
  except RecursionError:
    raise _damaged(path, 'nested too deeply') from None
  except (ValueError, TypeError, ConfigError, csv.Error) as error:
    raise _damaged(path, str(error)) from None
  if not seals and 'code' in about:
    raise _damaged(path, 'its checksum is missing')
  if not points:
    raise _damaged(path, 'it has no rows')
  grids = {variant: _grid(points, variant) for variant in {point.variant for point in points}}
  full = max(grids.values(), key=len)
  for variant, grid in grids.items():
    if grid != full:
      raise _damaged(path, f'the grid of {variant} differs from the others')
  if mark_chosen(points) != tuple(points):
    raise _damaged(path, 'a chosen learning rate does not have the lowest mean loss')
  return Tuning(path, about, tuple(points))


def _grid(points: Iterable[GridPoint], variant: str) -> list[tuple[float, int]]:
  """The learning rates and seeds of a variant's runs."""
  return sorted((point.learning_rate, point.seed) for point in points if point.variant == variant)


def _parse(row: Mapping[str, str]) -> GridPoint:
  if None in row or None in row.values():
    raise ValueError('a row is too long or too short')
  point = GridPoint(
    variant=row['variant'],
    learning_rate=float(row['learning_rate']),
    warmup_steps=int(row['warmup_steps']),
    seed=int(row['seed']),
    status=row['status'],
    final_loss=float(row['final_loss']) if row['final_loss'] else None,
    counted_loss=float(row['counted_loss']),
    unit=row['unit'],
    chosen=row['chosen'] == 'True',
  )
  final = point.final_loss
  possible = (
    0 < point.learning_rate < math.inf,
    point.warmup_steps >= 0 and point.seed >= 0,
    point.status in STATUSES and (final is None) == (point.status == 'diverged'),
    final is None or 0 <= final < math.inf,
    point.counted_loss >= 0,  # may be infinite, but not NaN
    str(point.chosen) == row['chosen'],
  )
  if not all(possible):
    raise ValueError(f'impossible row: {",".join(row.values())}')
  return point


def _checksum(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()


def _damaged(path: Path, what: str) -> Damaged:
  return Damaged(f'{path} is damaged ({what})', '--tune rebuilds it from its finished runs; or move it away')


def describe_tuning(tuning: Tuning, variants: Iterable[str], data_checksums: Sequence[str]) -> dict[str, Any]:
  """Describes how the learning rates of a report were chosen, with warnings about the choice.

  Args:
    tuning: the tuning that chose them.
    variants: the variants that have runs.
    data_checksums: the data checksums of these runs.
  """
  rates, seeds = tuning.learning_rates, tuning.seeds
  named = ', '.join(map(wording.format_compact, rates))
  warmups = sorted({point.warmup_steps for point in tuning.points})
  with_warmup = f' and warm-up (of {", ".join(map(str, warmups))} steps)' if len(warmups) > 1 else ''
  sentence = (
    f'each variant runs at the learning rate (of {named}){with_warmup} with the lowest mean validation loss over '
    f'tuning {wording.format_seeds(seeds)}; results are reported on other seeds and on the test split'
  )
  warnings = []
  if list(data_checksums) != [tuning.about['data_checksum']]:
    warnings.append('the learning rates were tuned on another text')
  others = [version for version in tuning.about.get('code') or () if version['digest'] != DIGEST]
  if others:
    which = ', '.join(map(describe_code, others))
    warnings.append(f'the learning rates were tuned with other code than this checkout ({which})')
  for variant in (name for name in variants if name in tuning.chosen):
    rate = tuning.chosen[variant][0]
    at_rate = [point for point in tuning.of(variant) if point.chosen]
    learned = sum(point.status == 'completed' for point in at_rate)
    if len(rates) > 1 and rate in (rates[0], rates[-1]):
      side = 'lowest' if rate == rates[0] else 'highest'
      warnings.append(
        f'{variant}: its learning rate, {wording.format_compact(rate)}, is the {side} of the grid; a better one may '
        'lie beyond it'
      )
    if learned < len(at_rate):
      warnings.append(f'{variant}: {learned} of {len(at_rate)} tuning runs learned at its learning rate')
  return {'sentence': sentence, 'seeds': seeds, 'learning_rates': rates, 'warnings': warnings}
