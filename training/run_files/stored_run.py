"""What a run's directory says of the run, each file compared with another that knows: what has changed is not believed.

A finished run whose result, log or config has changed since is not finished: it resumes from its last whole checkpoint,
and all of them are written anew.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.config import Config
from training.files import Damaged, checksum_of, read_json
from training.identity import identity_of
from training.run_files.result import read_result

CONFIG, LOG, ENVIRONMENT = 'config.json', 'metrics.jsonl', 'environment.json'
CONFIG_REMEDY = 'the command that made the run writes it anew, from the last checkpoint'
LOG_REMEDY = 'the command that made the run makes it again, from the last checkpoint before the change'


def read_config(directory: Path) -> dict[str, Any] | None:
  """The config of a run, flat, compared with its result if it has one; None if there is none.

  Raises:
    Damaged: if config.json is not what the run's result was made with.
    ConfigError: if it cannot be read.
  """
  path = directory / CONFIG
  stored, result = read_json(path, CONFIG_REMEDY), intact_result(directory) or {}
  if stored is None:
    return None
  checksum = checksum_of(identity_of(stored))  # of what decides its numbers: the rest may be given anew at every start
  if result.get('config_checksum', checksum) != checksum:
    raise Damaged(f'{path} is damaged (its result was made with another config)', CONFIG_REMEDY)
  return stored


def checkpointed_identity(directory: Path) -> dict[str, Any] | None:
  """The fields that decide the run, as the newest of its checkpoints with a whole manifest says; None without one."""
  folder = directory / 'checkpoints'
  names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
  for step in sorted((name for name in names if name.isdecimal()), key=int, reverse=True):
    try:
      manifest = read_json(folder / step / 'manifest.json', sealed=lambda manifest: True)
    except Damaged:
      continue  # an older one may be whole
    if manifest is not None:
      return {path: value for path, value in manifest['about']['run'].items() if path != 'data_checksum'}
  return None


def check_log(directory: Path, result: Mapping[str, Any]) -> None:
  """Raises Damaged if metrics.jsonl is not what it was when the run ended; older versions did not keep what it was."""
  path, mark = directory / LOG, result.get('log')
  if mark is not None:
    content = path.read_bytes() if path.is_file() else b''
    if len(content) != mark['bytes'] or hashlib.sha256(content).hexdigest() != mark['sha256']:
      raise Damaged(f'{path} is damaged (it is not what it was when the run ended)', LOG_REMEDY)


def finished_result(directory: Path, config: Config) -> dict[str, Any] | None:
  """The result of a run of as many steps as `config` has; None if it is not finished.

  Raises:
    Damaged: if the result is there, and it, the config or the log has changed since.
    ConfigError: if one of them cannot be read.
  """
  result = read_result(directory)
  if result is None or (read_config(directory) or {}).get('run.steps') != config.run.steps:
    return None
  check_log(directory, result)
  return result


def intact_result(directory: Path) -> dict[str, Any] | None:
  """The result of a run; None if there is none that can be believed."""
  try:
    return read_result(directory)
  except Damaged:
    return None


def data_checksum(directory: Path) -> str | None:
  """Of the data that the run was begun on, as its result or its environment.json says; None where neither does."""
  begun = intact_result(directory) or {}
  if 'data_checksum' not in begun:
    try:
      begun = read_json(directory / ENVIRONMENT) or {}
    except Damaged:  # a checkpoint knows, too; it is written anew when the run resumes
      return None
  return begun.get('data_checksum')


def recorded_provenance(directory: Path) -> dict[str, Any]:
  """What a run was last trained with: its result or else its environment.json, which have `provenance.FIELDS`.

  Empty if it has neither; the fields may be missing from files of older versions.
  """
  result = intact_result(directory)
  if result is not None:
    return result
  try:
    return read_json(directory / ENVIRONMENT) or {}
  except Damaged:
    return {}
