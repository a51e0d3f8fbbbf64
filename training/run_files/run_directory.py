"""The directory of a run: which run it belongs to, and whether a run may use it.

config.json  metrics.jsonl  checkpoints/  tensorboard/  result.json
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from training.config import Config, ConfigError
from training.data.evaluation_subset import evaluated_as_configured
from training.files import Damaged, clear_unfinished, read_json, write_json, write_sealed
from training.identity import differences, identity
from training.run_files import stored_run

TUNING_POINT = re.compile(r'lr_[0-9][0-9.e+-]*(_warmup_[0-9]+)?')  # folder of one setting in tuning/<variant>/
FAILURE = 'failure.json'  # why the run ended without a result; deleted when the run starts again


class OtherRun(ConfigError):  # noqa: N818 - a state of a directory
  """A directory holds another run than the requested one; `what` is the message without the remedy."""

  def __init__(self, what: str, remedy: str):
    super().__init__(f'{what}: {remedy}')
    self.what = what


def check(directory: Path, config: Config, extend: bool = False, reads: bool = False) -> None:
  """Checks that a run of this config may use the directory; writes nothing.

  Args:
    directory: the run's directory.
    config: the run's config.
    extend: whether the directory may hold the same run with fewer steps, to be extended.
    reads: whether the directory will only be read, and need not be writable.

  Raises:
    OtherRun: if the directory holds another run, with all differences.
    ConfigError: if a file or folder is in the way.
  """
  check_paths_free(directory)
  if not reads:
    check_writable(directory)
  remedy = f'use --workdir={workdir_of(directory)}_2 for this run'
  stored = _stored_identity(directory, remedy)
  if stored is None:
    return
  differing = differences(stored, identity(config))
  if differing.keys() - {'run.steps'}:  # config.json may have changed, while a checkpoint has the true identity
    saved = stored_run.checkpointed_identity(directory)
    differing = differing if saved is None else differences(saved, identity(config))
  if differing.keys() == {'run.steps'} and isinstance(stored.get('run.steps'), int):
    before, steps = stored['run.steps'], config.run.steps
    if steps < before:
      raise OtherRun(f'{directory} holds a run of {before} steps, more than the requested {steps}', remedy)
    if not extend:
      what = f'{directory} holds a run of {before} steps, and {steps} are requested'
      raise OtherRun(what, f'extend it with --extend, or {remedy}')
  elif differing:
    raise OtherRun(f'{directory} holds another run ({"; ".join(differing.values())})', remedy)


def _stored_identity(directory: Path, remedy: str) -> Mapping[str, Any] | None:
  """The config of the run in the directory or, if config.json is damaged or missing, the identity in its checkpoint."""
  wrong = ''
  try:
    stored = stored_run.read_config(directory)
  except Damaged as error:
    stored, wrong = None, error.what
  if stored is None:
    stored = stored_run.checkpointed_identity(directory)
  left = [name for name in ('result.json', 'checkpoints', 'metrics.jsonl') if (directory / name).exists()]
  if stored is None and (wrong or left):
    wrong = wrong or f'{directory} holds the {left[0]} of a run, but no config.json'
    raise ConfigError(f'{wrong}, and no checkpoint identifies the run: move {directory} away, or {remedy}')
  return stored


def check_paths_free(directory: Path) -> None:
  """Raises ConfigError if a file is where the run needs a folder, or a folder where it needs a file."""
  try:
    for folder in (directory / 'checkpoints', directory / 'tensorboard', directory, *directory.parents):
      if folder.exists() and not folder.is_dir():
        raise ConfigError(f'{folder} is a file, where a folder is needed: move it, or choose another --workdir')
    if (directory / 'metrics.jsonl').is_dir():
      raise ConfigError(f'{directory}/metrics.jsonl is a folder, where a file is needed: move it')
  except PermissionError as error:
    raise ConfigError(f'{error.filename} cannot be read: choose another --workdir') from None


def check_writable(directory: Path) -> None:
  """Raises ConfigError if a directory is not writable, or cannot be created."""
  nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
  if not os.access(nearest, os.W_OK | os.X_OK):
    raise ConfigError(f'{nearest} is not writable: choose another --workdir')


def check_data(directory: Path, data_checksum: str) -> None:
  """Raises ConfigError if the run in the directory was started on data with another checksum."""
  if stored_run.data_checksum(directory) not in (None, data_checksum):
    raise ConfigError(
      f'{directory} was trained on a different text than the current one: restore it, or choose another --workdir'
    )


class FailureRecord(NamedTuple):
  """Why a run ended without a result, and the offset in bytes of the failed attempt in the worker's log."""

  error: str
  log_start: int = 0


def record_failure(directory: Path, failure: FailureRecord) -> None:
  """Writes failure.json: why the run ended without a result."""
  write_sealed(directory / FAILURE, failure._asdict())


def read_failure(directory: Path) -> FailureRecord | None:
  """Why the run ended without a result; None if no failure is recorded."""
  try:
    failure = read_json(directory / FAILURE)
  except Damaged as error:
    return FailureRecord(f'the cause is unknown: {error.what}')
  if failure is None:
    return None
  why, start = failure.get('error'), failure.get('log_start', 0)
  if not isinstance(why, str) or type(start) is not int or start < 0:
    return FailureRecord(f'the cause is unknown: {directory / FAILURE} does not state it')
  return FailureRecord(why, start)


def delete_leftovers(directory: Path) -> None:
  """Deletes the files that an unfinished save created at the old path of a run directory that was moved."""
  checkpoints = directory / 'checkpoints'
  if (directory / 'lock').exists():  # of another run, which trains there now
    return
  for unfinished in checkpoints.glob('*.saving*'):
    shutil.rmtree(unfinished)
  for folder in (checkpoints, directory, *directory.parents):
    if not folder.exists():
      continue
    if any(folder.iterdir()):
      break
    folder.rmdir()


def prepare(directory: Path, config: Config) -> None:
  """Creates the directory and writes config.json, after `check`; deletes the unfinished files of a killed process."""
  check(directory, config)
  clear_unfinished(directory)
  (directory / FAILURE).unlink(missing_ok=True)
  write_json(directory / 'config.json', config.to_flat())


def extend_steps(directory: Path, config: Config) -> None:
  """If the run in the directory has fewer steps than `config`, sets its steps to those and deletes its result."""
  stored = _stored_identity(directory, 'choose another --workdir')
  if stored is not None and stored.get('run.steps', config.run.steps) < config.run.steps:
    (directory / 'result.json').unlink(missing_ok=True)
    write_json(directory / 'config.json', config.to_flat())


def workdir_of(directory: Path) -> Path:
  """<workdir> of <workdir>/<experiment>/<variant>/seed_<k>, or .../<experiment>/tuning/<variant>/<rate>/seed_<k>."""
  parents = directory.parents
  # The name `tuning` is not enough: a work directory may have it too.
  of_tuning = len(parents) > 4 and parents[2].name == 'tuning' and TUNING_POINT.fullmatch(parents[0].name)
  above = 4 if of_tuning else 2
  return parents[above] if len(parents) > above else directory


def is_finished(directory: Path, config: Config) -> bool:
  """Whether the directory has an intact result with the steps and the final_evaluation_tokens of `config`."""
  try:
    result = stored_run.finished_result(directory, config)
    return result is not None and evaluated_as_configured(result, config.run.final_evaluation_tokens)
  except Damaged:
    return False


def damage(directory: Path, config: Config) -> str | None:
  """What is wrong with the files of a finished run, for a note; None if they are intact."""
  try:
    stored_run.finished_result(directory, config)
    stored = stored_run.read_config(directory) or {}
  except Damaged as error:
    return error.what
  differing = differences(stored, identity(config)) if stored else {}
  differing.pop('run.steps', None)
  return f'{directory}/config.json has changed ({"; ".join(differing.values())})' if differing else None
