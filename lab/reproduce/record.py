"""What a reproduction leaves behind: measured.json with all that made it, and what it gave when last run here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.reproduction import Reproduction, spell
from lab.reproduce.verdicts import Finding, overall
from training.code_version import DIGEST, PROJECT, code_revision, code_version, describe_code
from training.config import ConfigError
from training.files import read_json, write_json
from training.host import machine
from training.provenance import provenance

EXPECTED = PROJECT / 'experiments' / 'expected'
FLOOR = 1e-5  # differences below this are rounding, whatever the value

Record = Mapping[str, Any]  # what measured.json holds


def command(name: str, scale: str) -> str:
  """What a person types to make a reproduction again."""
  return f'python reproduce.py --only={name}' + (f' --scale={scale}' if scale != 'small' else '')


def make_record(reproduction: Reproduction, scale: str, measured: Mapping[str, Any], seconds: float) -> dict[str, Any]:
  """The content of measured.json: the numbers, and what made them."""
  settings, here = plain(reproduction.at_scale(scale)), provenance()
  return {
    'reproduction': reproduction.name,
    'command': command(reproduction.name, scale),
    'scale': scale,
    'settings': settings,
    'seeds': settings.get('seeds'),
    'seconds': round(seconds, 1),
    'code_revision': code_revision(),
    'made_by': [here.pop('code')],
    'data_checksum': None,
    'jax_settings': here.pop('settings'),
    **here,
    'measured': plain(measured),
  }


def read_record(path: Path, reproduction: Reproduction) -> dict[str, Any]:
  """Reads a measured.json.

  Raises:
    ConfigError: if there is none, it is damaged, or it lacks a number that is expected now; saying what to run. (Older
      versions wrote no checksum.)
  """
  again = f'make it with {command(reproduction.name, "small")} --workdir={path.parents[2]}'
  record = read_json(path, again, sealed=lambda record: 'made_by' in record)
  if record is None:
    raise ConfigError(f'there is no {path}: {again}')
  kinds = {'command': str, 'settings': dict, 'seconds': int | float, 'measured': dict}
  missing = [name for name, kind in kinds.items() if not isinstance(record.get(name), kind)]
  if not missing:
    missing = [one.quantity for one in reproduction.expected if one.quantity not in record['measured']]
  if missing:
    raise ConfigError(f'{path} has no {missing[0]!r}: {again}')
  return record


def code_note(record: Record) -> str | None:
  """What is said of a record whose numbers other code made than this checkout's; None if none did."""
  others = [made_by for made_by in record.get('made_by', ()) if made_by['digest'] != DIGEST]
  if not others:
    return None
  by = ', '.join(map(describe_code, others))
  return f'{record["reproduction"]}: made by other code than this checkout ({by}; here {describe_code(code_version())})'


def plain(value: Any) -> Any:
  """The value as JSON has it: arrays as lists, numbers that are not finite as None."""
  if isinstance(value, Mapping):
    return {str(key): plain(one) for key, one in value.items()}
  if isinstance(value, str | bool | int | None):
    return value
  if isinstance(value, list | tuple):
    return [plain(one) for one in value]
  array = np.asarray(value)
  if array.ndim:
    return [plain(one) for one in array]
  return plain(array.item()) if not isinstance(value, float) else value if np.isfinite(value) else None


def expected_path(name: str) -> Path:
  """Where it is kept what a reproduction gave when last run here."""
  return EXPECTED / f'{name}.json'


def write_expected(reproduction: Reproduction, findings: Sequence[Finding], date: str) -> Path:
  """Writes experiments/expected/<name>.json, which `moved` compares later runs with."""
  values = {
    expected.quantity: {'says': finding.says, 'value': finding.value, 'tolerance': _tolerance(reproduction, finding)}
    for expected, finding in zip(reproduction.expected, findings, strict=True)
  }
  content = {'verdict': overall(findings), 'date': date, 'machine': machine(), 'values': values}
  return write_json(expected_path(reproduction.name), content)


def _tolerance(reproduction: Reproduction, finding: Finding) -> float:
  """Of what was measured in runs the drift itself: 300 steps magnify the last bits, whatever they end at."""
  if reproduction.read is not None:
    return reproduction.drift
  largest = float(np.max(np.abs(finding.value))) if finding.value is not None else 0.0
  return float(f'{max(FLOOR, reproduction.drift * largest):.2g}')


def moved(reproduction: Reproduction, findings: Sequence[Finding]) -> list[str]:
  """What is not as it was when last run here, a line each.

  Raises:
    ConfigError: if nothing was kept for this reproduction.
  """
  kept = read_json(expected_path(reproduction.name), 'it comes with the project: restore it')
  if kept is None:
    raise ConfigError(
      f'{reproduction.name}: nothing in experiments/expected to check against: '
      f'{command(reproduction.name, "small")} --update_expected'
    )
  lines = []
  for expected, finding in zip(reproduction.expected, findings, strict=True):
    before = kept['values'].get(expected.quantity)
    if before is None:
      lines.append(f'{expected.quantity}: new')
    elif not _alike(before['value'], finding.value, before['tolerance']):
      lines.append(f'{expected.quantity} ({finding.says}): {spell(before["value"])} then, {spell(finding.value)} now')
  gone = set(kept['values']) - {expected.quantity for expected in reproduction.expected}
  lines += [f'{quantity}: gone' for quantity in sorted(gone)]
  if kept['verdict'] != overall(findings):
    lines.append(f'{kept["verdict"]} then, {overall(findings)} now')
  return lines


def _alike(before: Any, now: Any, tolerance: float) -> bool:
  if before is None or now is None:
    return before is now
  return np.shape(before) == np.shape(now) and bool(np.all(np.abs(np.subtract(before, now)) <= tolerance))
