"""Reads the files of a run's directory and checks them against one another, to detect changes.

A run whose result, log or config has changed since it finished counts as unfinished: it resumes from its last intact
checkpoint, and these files are rewritten.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.config import Config, with_present_names
from training.files import Damaged, checksum_of, read_json
from training.identity import identity_of
from training.run_files.result import read_result

CONFIG, LOG, ENVIRONMENT = 'config.json', 'metrics.jsonl', 'environment.json'
CONFIG_REMEDY = 'the command that trained the run writes it again, from the last checkpoint'
LOG_REMEDY = 'the command that trained the run writes it again, from the last checkpoint before the change'


def read_config(directory: Path) -> dict[str, Any] | None:
  """The flat config of a run, checked against its result if it has one; None if there is no config.json.

  Fields that have been renamed since have their present names.

  Raises:
    Damaged: if the result was produced with another config than config.json.
    ConfigError: if it cannot be read.
  """
  path = directory / CONFIG
  stored, result = read_json(path, CONFIG_REMEDY), intact_result(directory) or {}
  if stored is None:
    return None
  checksum = checksum_of(identity_of(stored))  # only of its identity: other fields may differ at every start
  if result.get('config_checksum', checksum) != checksum:
    raise Damaged(f'{path} is damaged (its result was produced with another config)', CONFIG_REMEDY)
  return with_present_names(stored)


def checkpointed_identity(directory: Path) -> dict[str, Any] | None:
  """The identity of a run, from its newest checkpoint with an intact manifest; None if there is none."""
  folder = directory / 'checkpoints'
  names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
  for step in sorted((name for name in names if name.isdecimal()), key=int, reverse=True):
    try:
      manifest = read_json(folder / step / 'manifest.json', sealed=lambda manifest: True)
    except Damaged:
      continue  # an older one may be intact
    if manifest is not None:
      return {path: value for path, value in manifest['about']['run'].items() if path != 'data_checksum'}
  return None


def check_log(directory: Path, result: Mapping[str, Any]) -> None:
  """Raises Damaged if metrics.jsonl has changed since the run ended; older versions recorded no checksum."""
  path, mark = directory / LOG, result.get('log')
  if mark is not None:
    content = path.read_bytes() if path.is_file() else b''
    if len(content) != mark['bytes'] or hashlib.sha256(content).hexdigest() != mark['sha256']:
      raise Damaged(f'{path} is damaged (it has changed since the run ended)', LOG_REMEDY)


def finished_result(directory: Path, config: Config) -> dict[str, Any] | None:
  """The result of a run with as many steps as `config`; None if it is not finished.

  Raises:
    Damaged: if there is a result, and it, the config or the log has changed since the run ended.
    ConfigError: if one of these files cannot be read.
  """
  result = read_result(directory)
  if result is None or (read_config(directory) or {}).get('run.steps') != config.run.steps:
    return None
  check_log(directory, result)
  return result


def intact_result(directory: Path) -> dict[str, Any] | None:
  """The result of a run; None if it has none or a damaged one."""
  try:
    return read_result(directory)
  except Damaged:
    return None


def data_checksum(directory: Path) -> str | None:
  """The checksum of the data that the run started on, from its result or its environment.json; None if not recorded."""
  recorded = intact_result(directory) or {}
  if 'data_checksum' not in recorded:
    try:
      recorded = read_json(directory / ENVIRONMENT) or {}
    except Damaged:  # the checkpoints record it too, and the file is written again when the run resumes
      return None
  return recorded.get('data_checksum')


def recorded_provenance(directory: Path) -> dict[str, Any]:
  """The provenance of a run's latest start: its result or, without one, its environment.json; see `provenance.FIELDS`.

  Empty if it has neither; files of older versions lack some of the fields.
  """
  result = intact_result(directory)
  if result is not None:
    return result
  try:
    return read_json(directory / ENVIRONMENT) or {}
  except Damaged:
    return {}
