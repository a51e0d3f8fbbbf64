"""environment.json: the provenance of a run's latest start, and how it differs from that of the current process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.code_version import DIGEST, code_version, describe_code
from training.files import Damaged, read_json, write_sealed
from training.provenance import environment, settings
from training.run_files.stored_run import ENVIRONMENT, recorded_provenance


def record_environment(directory: Path, data_checksum: str, resumed: bool) -> str | None:
  """Writes environment.json into a run's directory.

  Returns:
    A note if a run resumes in an environment other than its previous one; otherwise None. It does not cover code
    changes, which the checkpoints record.
  """
  path, here = directory / ENVIRONMENT, {**environment(), 'data_checksum': data_checksum}
  try:
    before, warning = (read_json(path) if resumed else None), None
  except Damaged:
    before, warning = None, f'{path} was damaged and is rewritten: the environment the run started in is unknown'
  write_sealed(path, {**here, 'code': code_version()})
  if before is None:
    return warning
  changed = [text for name, value in here.items() if name in before for text in _changes(name, before[name], value)]
  return f'resumed in another environment, so its numbers may differ ({", ".join(changed)})' if changed else None


def provenance_changes(directory: Path) -> list[str]:
  """How the code and settings of this process differ from those that trained a run, as far as its files record them."""
  before, lines = recorded_provenance(directory), []
  if 'code' in before and before['code']['digest'] != DIGEST:
    trained_by, measured_by = describe_code(before['code']), describe_code(code_version())
    lines.append(f'{directory} was trained by code ({trained_by}) other than that measuring it now ({measured_by})')
  changed = _changes('settings', before['settings'], settings()) if 'settings' in before else []
  if changed:
    lines.append(f'{directory} was trained with other settings ({", ".join(changed)})')
  return lines


def _changes(name: str, before: Any, now: Any) -> list[str]:
  """The differences between two values, as one phrase each; between dicts, by key."""
  if isinstance(before, Mapping) and isinstance(now, Mapping):
    keys = [*now, *(key for key in before if key not in now)]
    return [text for key in keys for text in _changes(key, before.get(key), now.get(key))]
  return [] if before == now else [f'{name} was {before}, is {now}']
