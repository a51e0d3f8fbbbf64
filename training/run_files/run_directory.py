"""The directory of a run: whose it is, and what lies in it.

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

TUNING_POINT = re.compile(r'lr_[0-9][0-9.e+-]*(_warmup_[0-9]+)?')  # a folder of tuning/<variant>/: one setting
FAILURE = 'failure.json'  # why the run ended without a result; gone once it starts again


class OtherRun(ConfigError):  # noqa: N818 (a state of the directory, which readers may show)
  """A directory holds another run than the one that is asked for; `what` says in what they differ, and no remedy."""

  def __init__(self, what: str, remedy: str):
    super().__init__(f'{what}: {remedy}')
    self.what = what


def check(directory: Path, config: Config, extend: bool = False, reads: bool = False) -> None:
  """Checks that a run of this config may use the directory; writes nothing.

  Args:
    directory: of the run.
    config: of the run.
    extend: whether a run that differs in a smaller number of steps alone may be extended to more of them.
    reads: whether the directory will only be read from, and need not be writable.

  Raises:
    OtherRun: if another run's config.json is there, naming all that differs.
    ConfigError: if something else is in the way.
  """
  check_paths_free(directory)
  if not reads:
    check_writable(directory)
  elsewhere = f'start this one with --workdir={workdir_of(directory)}_2'
  stored = _stored_identity(directory, elsewhere)
  if stored is None:
    return
  differing = differences(stored, identity(config))
  if differing.keys() - {'run.steps'}:  # unless a checkpoint says that it is this run, and config.json has changed
    saved = stored_run.checkpointed_identity(directory)
    differing = differing if saved is None else differences(saved, identity(config))
  if differing.keys() == {'run.steps'} and isinstance(stored.get('run.steps'), int):
    before, steps = stored['run.steps'], config.run.steps
    if steps < before:
      raise OtherRun(f'{directory} holds a run of {before} steps, more than the {steps} asked for', elsewhere)
    if not extend:
      what = f'{directory} holds a run of {before} steps, and {steps} are asked for'
      raise OtherRun(what, f'--extend takes it there, or {elsewhere}')
  elif differing:
    raise OtherRun(f'{directory} holds another run ({"; ".join(differing.values())})', elsewhere)


def _stored_identity(directory: Path, elsewhere: str) -> Mapping[str, Any] | None:
  """What the run in the directory is: by its config.json or, where that is damaged or gone, by its last checkpoint."""
  wrong = ''
  try:
    stored = stored_run.read_config(directory)
  except Damaged as error:
    stored, wrong = None, error.what
  if stored is None:
    stored = stored_run.checkpointed_identity(directory)
  left = [name for name in ('result.json', 'checkpoints', 'metrics.jsonl') if (directory / name).exists()]
  if stored is None and (wrong or left):
    wrong = wrong or f'{directory} holds the {left[0]} of a run whose config.json is gone'
    raise ConfigError(f'{wrong}, and no checkpoint says whose run it is: move {directory} away, or {elsewhere}')
  return stored


def check_paths_free(directory: Path) -> None:
  """Raises ConfigError if there cannot be a directory here with the files of a run in it."""
  try:
    for folder in (directory / 'checkpoints', directory / 'tensorboard', directory, *directory.parents):
      if folder.exists() and not folder.is_dir():
        raise ConfigError(f'{folder} is a file, and a folder is needed there: move it, or choose another --workdir')
    if (directory / 'metrics.jsonl').is_dir():
      raise ConfigError(f'{directory}/metrics.jsonl is a folder, and a file is needed there: move it')
  except PermissionError as error:
    raise ConfigError(f'{error.filename} cannot be looked into: choose another --workdir') from None


def check_writable(directory: Path) -> None:
  """Raises ConfigError if nothing can be written in a directory, or it cannot be created."""
  nearest = next(place for place in (directory, *directory.absolute().parents) if place.exists())
  if not os.access(nearest, os.W_OK | os.X_OK):
    raise ConfigError(f'{nearest} cannot be written to: choose another --workdir')


def check_data(directory: Path, data_checksum: str) -> None:
  """Raises ConfigError if the run in the directory was begun on other data than these."""
  if stored_run.data_checksum(directory) not in (None, data_checksum):
    raise ConfigError(
      f'{directory} was trained on other text than there is now: restore that text, or choose another --workdir'
    )


class Failure(NamedTuple):
  """Why a run ended without a result, and where in its log the attempt that failed begins, in bytes."""

  error: str
  log_start: int = 0


def record_failure(directory: Path, failure: Failure) -> None:
  """Keeps why the run ended without a result, for who looks at its directory alone."""
  write_sealed(directory / FAILURE, failure._asdict())


def read_failure(directory: Path) -> Failure | None:
  """Why the run ended without a result; None if it did not."""
  try:
    failure = read_json(directory / FAILURE)
  except Damaged as error:
    return Failure(f'why is not known: {error.what}')
  if failure is None:
    return None
  why, start = failure.get('error'), failure.get('log_start', 0)
  if not isinstance(why, str) or type(start) is not int or start < 0:
    return Failure(f'why is not known: {directory / FAILURE} does not say')
  return Failure(why, start)


def delete_leftovers(directory: Path) -> None:
  """Deletes what a save under way has created at the old place of a run's directory that was moved."""
  checkpoints = directory / 'checkpoints'
  if (directory / 'lock').exists():  # another run's, that trains there now
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
  """Makes the directory and writes its config.json, after `check`; clears away what a killed process was writing."""
  check(directory, config)
  clear_unfinished(directory)
  (directory / FAILURE).unlink(missing_ok=True)
  write_json(directory / 'config.json', config.to_flat())


def extend_steps(directory: Path, config: Config) -> None:
  """Makes a run in the directory that has fewer steps one of as many as `config` has; its result is one no longer."""
  stored = _stored_identity(directory, 'choose another --workdir')
  if stored is not None and stored.get('run.steps', config.run.steps) < config.run.steps:
    (directory / 'result.json').unlink(missing_ok=True)
    write_json(directory / 'config.json', config.to_flat())


def workdir_of(directory: Path) -> Path:
  """<workdir> of <workdir>/<experiment>/<variant>/seed_<k>, or .../<experiment>/tuning/<variant>/<rate>/seed_<k>."""
  parents = directory.parents
  # The name alone would not do: a work directory may be called `tuning`, too.
  of_tuning = len(parents) > 4 and parents[2].name == 'tuning' and TUNING_POINT.fullmatch(parents[0].name)
  above = 4 if of_tuning else 2
  return parents[above] if len(parents) > above else directory


def is_finished(directory: Path, config: Config) -> bool:
  """Whether the directory has the result that `config` asks for: of as many steps, on these tokens, none damaged."""
  try:
    result = stored_run.finished_result(directory, config)
    return result is not None and evaluated_as_configured(result, config.run.final_evaluation_tokens)
  except Damaged:
    return False


def damage(directory: Path, config: Config) -> str | None:
  """What is wrong with the files of a run that was finished, for a note; None if nothing is."""
  try:
    stored_run.finished_result(directory, config)
    stored = stored_run.read_config(directory) or {}
  except Damaged as error:
    return error.what
  differing = differences(stored, identity(config)) if stored else {}
  differing.pop('run.steps', None)
  return f'{directory}/config.json has changed ({"; ".join(differing.values())})' if differing else None
