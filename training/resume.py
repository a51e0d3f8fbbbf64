"""The state a run starts from: its newest checkpoint, another run's parameters, or initial values."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.code_version import DIGEST, code_version, describe_code
from training.config import Config, ConfigError
from training.data.loading import Data
from training.digests import read_manifest
from training.init_from import check_source, source_params
from training.optimizer import make_schedule, updates_in_common
from training.programs import Programs
from training.provenance import numerical_environment
from training.run_files import run_directory
from training.run_files.checkpoint import About, Checkpoints, newest_intact
from training.run_files.metrics_log import EMPTY, check_mark
from training.run_files.result import RESULT
from training.state import State, with_params

# Fields of a checkpoint and of the result: the run whose parameters this one started from, and the steps at which it
# was extended, or resumed with other code or in another environment.
HISTORY = ('init_from', 'extended_at', 'code_changed_at', 'environment_changed_at')


def restore_or_init(
  config: Config,
  directory: Path,
  data: Data,
  programs: Programs,
  checkpoints: Checkpoints,
  note: Callable[[str], None],
) -> tuple[State, dict[str, Any], int | None]:
  """The state from which a run starts or resumes.

  Returns:
    state: at the first step to take.
    about: what the run's checkpoints record: {'run': its identity, 'log': the mark of its log at the state, 'code' and
      'environment': those of this process, and the fields of HISTORY}.
    resumed_at: the step of the restored checkpoint; None for a new run.

  Raises:
    ConfigError: if a checkpoint belongs to another run, with all differences, or if every checkpoint is damaged.
  """
  run = _identity(config, data.checksum)
  state = programs.init(np.uint32(config.run.init_seed))
  restored = checkpoints.restore(state, lambda about: _check(directory, about, run))
  if restored is None:
    _check_new(directory, config)
    about: dict[str, Any] = {'run': run, 'log': EMPTY, 'code': code_version(), 'environment': numerical_environment()}
    about |= {'init_from': None, 'extended_at': [], 'code_changed_at': [], 'environment_changed_at': []}
    if config.run.init_from:
      params, about['init_from'] = source_params(config, programs.mesh)
      state = with_params(state, params)
    return state, about, None
  for text in restored.notes:
    note(text)
  step, steps_before = int(restored.state.step), restored.about['run']['run.steps']
  changes = _code_changes(step, restored.about)
  if changes:
    note(_code_note(step, restored.about.get('code'), config.run.steps))
  about = {**restored.about, 'run': run, 'code': code_version(), 'environment': numerical_environment()}
  about['code_changed_at'] = [*restored.about.get('code_changed_at', []), *changes]
  changes = _environment_changes(step, restored.about)
  about['environment_changed_at'] = [*restored.about.get('environment_changed_at', []), *changes]
  if steps_before < config.run.steps:
    note(_extension_note(config, restored.state, steps_before, about['extended_at']))
    if config.optimizer.schedule == 'constant' or not _equals_longer_run(config, restored.state, steps_before, about):
      about['extended_at'] = [*about['extended_at'], step]
  return restored.state, about, step


def _code_changes(step: int, about: About) -> list[dict[str, Any]]:
  """The change of the code since a checkpoint, if it changed; older versions recorded no digest."""
  before = about.get('code', {}).get('digest')
  return [] if before == DIGEST else [{'step': step, 'digest': DIGEST, 'before': before}]


def _environment_changes(step: int, about: About) -> list[dict[str, Any]]:
  """The change of `numerical_environment` since a checkpoint, if it changed; older versions recorded none."""
  here = numerical_environment()
  before = about.get('environment', here)
  names = [*here, *(name for name in before if name not in here)]
  changed = {name: [before.get(name), here.get(name)] for name in names if before.get(name) != here.get(name)}
  return [{'step': step, 'changes': changed}] if changed else []


def _code_note(step: int, before: Mapping[str, Any] | None, steps: int) -> str:
  """The warning for a run of `steps` steps that resumes at `step` with code other than it was trained with."""
  trained_by = describe_code(before) if before else 'a version that did not record its code'
  parts = f'up to step {step} by {trained_by}; from there' if step < steps else f'by {trained_by}; evaluated'
  return f'the code of model/ or training/ has changed: trained {parts} by {describe_code(code_version())}'


def check_start(directory: Path, config: Config, data_checksum: str) -> None:
  """Raises the ConfigError that `restore_or_init` would raise, before anything is compiled; loads no array."""
  run = _identity(config, data_checksum)
  found = newest_intact(directory / 'checkpoints', lambda path: _check(directory, read_manifest(path)['about'], run))
  if found is None:
    _check_new(directory, config)
    if config.run.init_from:
      check_source(config)


def _check_new(directory: Path, config: Config) -> None:
  """Refuses to start a new run in the directory of a finished one, whose files would be lost."""
  if (directory / RESULT).exists():
    wrong = run_directory.damage(directory, config) or f'{directory} holds the result of a run'
    raise ConfigError(f'{wrong}, and there is no checkpoint to resume it from: move {directory} away to train it again')


def _identity(config: Config, data_checksum: str) -> dict[str, Any]:
  return {**run_directory.identity(config), 'data_checksum': data_checksum}


def _check(directory: Path, about: About, run: Mapping[str, Any]) -> None:
  """Refuses the checkpoint of another run; raises Damaged if the log no longer begins with the checkpoint's lines."""
  differing = run_directory.differences(about['run'], run)
  if about['run']['run.steps'] < run['run.steps']:
    del differing['run.steps']  # it is being extended
  if differing:
    raise ConfigError(
      f'{directory} holds a checkpoint of another run ({"; ".join(differing.values())}): choose another --workdir'
    )
  check_mark(directory / 'metrics.jsonl', about['log'])


def _equals_longer_run(config: Config, state: State, steps_before: int, about: About) -> bool:
  """Whether all learning rates so far are those of a run with config.run.steps steps from its start."""
  updates = int(state.optimizer[-1].count)
  return updates <= updates_in_common(config.optimizer, steps_before) and not about['extended_at']


def _extension_note(config: Config, state: State, steps_before: int, extended_at: Sequence[int]) -> str:
  """The effect of more steps on the learning rate; `extended_at`: the steps at which the run was extended before."""
  steps, schedule = config.run.steps, config.optimizer.schedule
  text = f'resumes from step {state.step} and trains to step {steps} instead of {steps_before}'
  if schedule == 'constant':
    return f'{text}; the learning rate is constant, so this is a run of {steps} steps like any other'
  updates, common = int(state.optimizer[-1].count), updates_in_common(config.optimizer, steps_before)
  if updates <= common:
    text += f'; up to here the {schedule} schedule of {steps} steps has the same learning rates'
    if extended_at:  # that may have changed earlier learning rates
      return f'{text} as that of {steps_before}, but the run was extended before, at step {extended_at[-1]}'
    return f'{text}, so this is a run of {steps} steps like any other'
  before, after = (float(make_schedule(config.optimizer, total)(updates)) for total in (steps_before, steps))
  return (
    f'{text}; from here on the {schedule} schedule is that of {steps} steps: the next learning rate is {after:.3g} '
    f'instead of {before:.3g}. The two schedules agree only up to update {common}, so the result is not that of a run '
    f'of {steps} steps from its start'
  )
