"""Which learning rate each variant is to have, by what every point of one grid came to: tuned.csv.

The file begins with what made it, a line each, as `# command: "python train.py --tune"`; then one row a run. A copy of
it in experiments/tuned/<experiment>.csv has the experiment run at these rates wherever its settings are the same.
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
from training.config import Config, ConfigError
from training.files import Damaged, write_atomically
from training.run_files.result import STATUSES


@dataclasses.dataclass(frozen=True)
class GridPoint:
  """One run of the grid.

  Attributes:
    variant, learning_rate, warmup_steps, seed: which.
    status: `completed`, `diverged` or `failed_to_learn`.
    final_loss: on the whole validation split, after the last step; None if it diverged.
    counted_loss: what the choice counts it as: `final_loss`; the loss at its initial values if it diverged; no less
      than the unigram entropy if it failed to learn.
    unit: of both.
    chosen: whether its variant runs at this learning rate and warm-up.
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
    """What is chosen: learning rate and warm-up."""
    return self.learning_rate, self.warmup_steps


SEAL = '# sha256: '  # begins the line with the checksum of all the others
COLUMNS = tuple(field.name for field in dataclasses.fields(GridPoint))


@dataclasses.dataclass(frozen=True)
class Tuning:
  """A tuned.csv.

  Attributes:
    path: where it is.
    about: what made it: command, settings, versions, device, data checksum and so on.
    points: every run of the grid, none left out.
  """

  path: Path
  about: Mapping[str, Any]
  points: tuple[GridPoint, ...]

  @property
  def chosen(self) -> dict[str, tuple[float, int]]:
    """The learning rate and the warm-up of each variant."""
    return {point.variant: point.setting for point in self.points if point.chosen}

  @property
  def seeds(self) -> list[int]:
    """Those that the choice was made on."""
    return sorted({point.seed for point in self.points})

  @property
  def learning_rates(self) -> list[float]:
    """Those of the grid."""
    return sorted({point.learning_rate for point in self.points})

  def of(self, variant: str) -> list[GridPoint]:
    """The points of a variant."""
    return [point for point in self.points if point.variant == variant]


def mark_chosen(points: Iterable[GridPoint]) -> tuple[GridPoint, ...]:
  """The points with `chosen` set: for each variant the setting of the lowest mean counted loss, of equals the first."""
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
  """Writes a tuned.csv, which `read` gives back as it was."""
  head = ''.join(f'# {name}: {json.dumps(value)}\n' for name, value in tuning.about.items())
  text = io.StringIO()
  rows = csv.DictWriter(text, COLUMNS, lineterminator='\n')
  rows.writeheader()
  rows.writerows(dataclasses.asdict(point) for point in tuning.points)
  return write_atomically(tuning.path, head, f'{SEAL}"{_checksum(head + text.getvalue())}"\n', text.getvalue())


def read_tuning(path: Path) -> Tuning | None:
  """Reads a tuned.csv; None if there is none.

  Raises:
    Damaged: if its checksum, the type or the range of a number is wrong, it does not give every variant the same grid,
      or another choice than its numbers do. Older versions wrote no checksum.
    ConfigError: if it cannot be read.
  """
  try:
    text = path.read_text('utf8')
  except (FileNotFoundError, NotADirectoryError):
    return None
  except PermissionError:
    raise ConfigError(f'{path} cannot be looked into: choose another --workdir') from None
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
    dict(about['variants']), about['data_checksum']
    points = [_parse(row) for row in csv.DictReader(line for line in lines if not line.startswith('#'))]
  except KeyError as error:
    raise _damaged(path, f'it has no {error.args[0]}') from None
  except RecursionError:
    raise _damaged(path, 'nested too deeply') from None
  except (ValueError, TypeError, ConfigError, csv.Error) as error:
    raise _damaged(path, str(error)) from None
  if not seals and 'code' in about:
    raise _damaged(path, 'its checksum is gone')
  if not points:
    raise _damaged(path, 'it has no rows')
  grids = {variant: _grid(points, variant) for variant in {point.variant for point in points}}
  full = max(grids.values(), key=len)
  for variant, grid in grids.items():
    if grid != full:
      raise _damaged(path, f'the grid of {variant} is not that of the others')
  if mark_chosen(points) != tuple(points):
    raise _damaged(path, 'a rate is chosen that is not the one of the lowest mean loss')
  return Tuning(path, about, tuple(points))


def _grid(points: Iterable[GridPoint], variant: str) -> list[tuple[float, int]]:
  """Rates and seeds of a variant, with as many of each as there are warm-ups."""
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
    point.counted_loss >= 0,  # it may be infinite, and is not NaN
    str(point.chosen) == row['chosen'],
  )
  if not all(possible):
    raise ValueError(f'a row reads {",".join(row.values())}')
  return point


def _checksum(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()


def _damaged(path: Path, what: str) -> Damaged:
  return Damaged(f'{path} is damaged ({what})', '--tune makes it again, from its finished runs; or move it away')


def describe_tuning(tuning: Tuning, variants: Iterable[str], data_checksums: Sequence[str]) -> dict[str, Any]:
  """What a report at the chosen rates says of them: how they were chosen, and what to be wary of.

  Args:
    tuning: that they were chosen by.
    variants: those that have runs.
    data_checksums: of the text that these runs read.
  """
  rates, seeds = tuning.learning_rates, tuning.seeds
  named = ', '.join(map(wording.format_number, rates))
  warmups = sorted({point.warmup_steps for point in tuning.points})
  and_warmup = f' and, of {", ".join(map(str, warmups))}, the warm-up' if len(warmups) > 1 else ''
  sentence = (
    f'each variant runs at the learning rate, of {named},{and_warmup} that had the lowest mean validation loss over '
    f'tuning {"seed" if len(seeds) == 1 else "seeds"} {", ".join(map(str, seeds))}; reported are other seeds and the '
    'test split'
  )
  warnings = []
  if list(data_checksums) != [tuning.about['data_checksum']]:
    warnings.append('the learning rates were chosen on another text')
  others = [made_by for made_by in tuning.about.get('code') or () if made_by['digest'] != DIGEST]
  if others:
    by = ', '.join(map(describe_code, others))
    warnings.append(f'the learning rates were chosen by other code than this checkout (by {by})')
  for variant in (name for name in variants if name in tuning.chosen):
    rate = tuning.chosen[variant][0]
    at_rate = [point for point in tuning.of(variant) if point.chosen]
    learned = sum(point.status == 'completed' for point in at_rate)
    if len(rates) > 1 and rate in (rates[0], rates[-1]):
      side = 'lowest' if rate == rates[0] else 'highest'
      warnings.append(
        f'{variant}: its learning rate, {wording.format_number(rate)}, is the {side} of the grid; a better one may lie '
        'beyond it'
      )
    if learned < len(at_rate):
      warnings.append(f'{variant}: {learned} of {len(at_rate)} tuning runs learned at its learning rate')
  return {'sentence': sentence, 'seeds': seeds, 'learning_rates': rates, 'warnings': warnings}
