"""environment.json: the provenance of a run's latest start; and how that differs from the current process."""

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
    A line for a run that resumes in another environment than it had; else None. Changes of the code are not part of
    it: the checkpoints record those.
  """
  path, here = directory / ENVIRONMENT, {**environment(), 'data_checksum': data_checksum}
  try:
    before, lost = (read_json(path) if resumed else None), None
  except Damaged:
    before, lost = None, f'{path} was damaged and is rewritten: the environment the run started in is not known'
  write_sealed(path, {**here, 'code': code_version()})
  if before is None:
    return lost
  changed = [text for name, value in here.items() if name in before for text in _changes(name, before[name], value)]
  return f'resumed in another environment, so its numbers may differ ({", ".join(changed)})' if changed else None


def provenance_changes(directory: Path) -> list[str]:
  """How the code and settings of this process differ from those that trained a run, as far as its files record them."""
  before, lines = recorded_provenance(directory), []
  if 'code' in before and before['code']['digest'] != DIGEST:
    trained_by, measured_by = describe_code(before['code']), describe_code(code_version())
    lines.append(f'{directory} was trained by other code ({trained_by}) than measures it now ({measured_by})')
  changed = _changes('settings', before['settings'], settings()) if 'settings' in before else []
  if changed:
    lines.append(f'{directory} was trained under other settings ({", ".join(changed)})')
  return lines


def _changes(name: str, before: Any, now: Any) -> list[str]:
  """The differences between two values, a phrase each; between dicts, by key."""
  if isinstance(before, Mapping) and isinstance(now, Mapping):
    keys = [*now, *(key for key in before if key not in now)]
    return [text for key in keys for text in _changes(key, before.get(key), now.get(key))]
  return [] if before == now else [f'{name} was {before}, is {now}']
