"""The committed values of each reproduction in experiments/expected, which --check compares new values with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.reproduction import Reproduction, format_value
from lab.reproduce.claim_verdict import Comparison, overall_verdict
from lab.reproduce.record import command
from training.code_version import PROJECT
from training.config import ConfigError
from training.files import read_json, write_json
from training.host import machine

FOLDER = PROJECT / 'experiments' / 'expected'
FLOOR = 1e-5  # smaller differences are due to rounding


def expected_path(name: str) -> Path:
  """The file with the committed values of a reproduction."""
  return FOLDER / f'{name}.json'


def write_expected(reproduction: Reproduction, comparisons: Sequence[Comparison], date: str) -> Path:
  """Writes experiments/expected/<name>.json, with which `changes` compares later values."""
  values = {
    expected.quantity: {
      'says': comparison.description, 'value': comparison.value, 'tolerance': _tolerance(reproduction, comparison)
    }
    for expected, comparison in zip(reproduction.expected, comparisons, strict=True)
  }  # fmt: skip
  content = {'verdict': overall_verdict(comparisons), 'date': date, 'machine': machine(), 'values': values}
  return write_json(expected_path(reproduction.name), content)


def _tolerance(reproduction: Reproduction, comparison: Comparison) -> float:
  """The difference that --check accepts.

  For values read from runs it is the drift itself: 300 training steps amplify the last bits, regardless of the size of
  the final value. Otherwise the drift is relative.
  """
  if reproduction.read is not None:
    return reproduction.drift
  largest = float(np.max(np.abs(comparison.value))) if comparison.value is not None else 0.0
  return float(f'{max(FLOOR, reproduction.drift * largest):.2g}')


def changes(reproduction: Reproduction, comparisons: Sequence[Comparison]) -> list[str]:
  """The differences from the committed values, one line each.

  Raises:
    ConfigError: if no values are committed for this reproduction.
  """
  committed = read_json(expected_path(reproduction.name), 'it is part of the project: restore it')
  if committed is None:
    raise ConfigError(
      f'{reproduction.name}: experiments/expected has no values to check against: '
      f'write them with {command(reproduction.name, "small")} --update_expected'
    )
  lines = []
  for expected, comparison in zip(reproduction.expected, comparisons, strict=True):
    before, now = committed['values'].get(expected.quantity), comparison.value
    if before is None:
      lines.append(f'{expected.quantity}: not in experiments/expected')
    elif not _within(before['value'], now, before['tolerance']):
      was, is_now = format_value(before['value']), format_value(now)
      lines.append(f'{expected.quantity} ({expected.description}): was {was}, is now {is_now}')
  removed = set(committed['values']) - {expected.quantity for expected in reproduction.expected}
  lines += [f'{quantity}: no longer measured' for quantity in sorted(removed)]
  if committed['verdict'] != overall_verdict(comparisons):
    lines.append(f'verdict was {committed["verdict"]}, is now {overall_verdict(comparisons)}')
  return lines


def _within(before: Any, now: Any, tolerance: float) -> bool:
  if before is None or now is None:
    return before is now
  return np.shape(before) == np.shape(now) and bool(np.all(np.abs(np.subtract(before, now)) <= tolerance))
