"""Where a run stands when it starts: at its newest checkpoint, at another run's parameters, or at initial values."""

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
from training.run_files.metrics_log import NOTHING, check_mark
from training.run_files.result import RESULT
from training.state import State, with_params

# Of a run's history: whose parameters it began with, and the steps at which it was given more steps, other code, or
# another environment.
KEPT = ('init_from', 'extended_at', 'code_changed_at', 'environment_changed_at')


def restore_or_init(
  config: Config,
  directory: Path,
  data: Data,
  programs: Programs,
  checkpoints: Checkpoints,
  note: Callable[[str], None],
) -> tuple[State, dict[str, Any], int | None]:
  """The state of a run that starts, or starts again.

  Returns:
    The state; what the run's checkpoints say of it: {'run': its identity, 'log': the lines that belong to the state,
    'code' and 'environment': what this process runs and under what, and what KEPT names}; and the step it is resumed
    at, or None.

  Raises:
    ConfigError: if a checkpoint is another run's, naming all that differs, or there are some and none is whole.
  """
  run = _identity(config, data.checksum)
  state = programs.init(np.uint32(config.run.init_seed))
  restored = checkpoints.restore(state, lambda about: _check(directory, about, run))
  if restored is None:
    _check_begins(directory, config)
    about: dict[str, Any] = {'run': run, 'log': NOTHING, 'code': code_version(), 'environment': numerical_environment()}
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
    note(_by_other_code(step, restored.about.get('code'), config.run.steps))
  about = {**restored.about, 'run': run, 'code': code_version(), 'environment': numerical_environment()}
  about['code_changed_at'] = [*restored.about.get('code_changed_at', []), *changes]
  others = _environment_changes(step, restored.about)
  about['environment_changed_at'] = [*restored.about.get('environment_changed_at', []), *others]
  if steps_before < config.run.steps:
    note(_extended(config, restored.state, steps_before, about['extended_at']))
    if config.optimizer.schedule == 'constant' or not _is_the_longer_run(config, restored.state, steps_before, about):
      about['extended_at'] = [*about['extended_at'], step]
  return restored.state, about, step


def _code_changes(step: int, about: About) -> list[dict[str, Any]]:
  """The change of code between a checkpoint and this process, if there is one; older versions kept no digest."""
  before = about.get('code', {}).get('digest')
  return [] if before == DIGEST else [{'step': step, 'digest': DIGEST, 'before': before}]


def _environment_changes(step: int, about: About) -> list[dict[str, Any]]:
  """The change of `numerical_environment` since a checkpoint; older versions recorded none."""
  here = numerical_environment()
  before = about.get('environment', here)
  names = [*here, *(name for name in before if name not in here)]
  changed = {name: [before.get(name), here.get(name)] for name in names if before.get(name) != here.get(name)}
  return [{'step': step, 'changes': changed}] if changed else []


def _by_other_code(step: int, before: Mapping[str, Any] | None, steps: int) -> str:
  """What a person is told of a run that resumes, at a step of all its steps, by other code than it was trained by."""
  until = describe_code(before) if before else 'a version that did not record its code'
  parts = f'up to step {step} by {until}; from there' if step < steps else f'trained by {until}; evaluated'
  return f'the code of model/ or training/ has changed: {parts} by {describe_code(code_version())}'


def check_start(directory: Path, config: Config, data_checksum: str) -> None:
  """Raises ConfigError, before anything is compiled, if `restore_or_init` would; loads no array."""
  run = _identity(config, data_checksum)
  found = newest_intact(directory / 'checkpoints', lambda path: _check(directory, read_manifest(path)['about'], run))
  if found is None:
    _check_begins(directory, config)
    if config.run.init_from:
      check_source(config)


def _check_begins(directory: Path, config: Config) -> None:
  """Refuses to begin a run in the place of one that was finished: its log and what is whole of it would be lost."""
  if (directory / RESULT).exists():
    wrong = run_directory.damage(directory, config) or f'{directory} holds the result of a run'
    raise ConfigError(f'{wrong}, and there is no checkpoint to resume it from: move {directory} away to train it anew')


def _identity(config: Config, data_checksum: str) -> dict[str, Any]:
  return {**run_directory.identity(config), 'data_checksum': data_checksum}


def _check(directory: Path, about: About, run: Mapping[str, Any]) -> None:
  """Refuses the checkpoint of another run; one whose lines in the log have changed is as good as damaged."""
  differing = run_directory.differences(about['run'], run)
  if about['run']['run.steps'] < run['run.steps']:
    del differing['run.steps']  # it is being extended
  if differing:
    shown = '; '.join(differing.values())
    raise ConfigError(f'{directory} holds a checkpoint of another run ({shown}): choose another --workdir')
  check_mark(directory / 'metrics.jsonl', about['log'])


def _is_the_longer_run(config: Config, state: State, steps_before: int, about: About) -> bool:
  """Whether all learning rates so far are those of a run that had these steps from its start."""
  updates = int(state.optimizer[-1].count)
  return updates <= updates_in_common(config.optimizer, steps_before) and not about['extended_at']


def _extended(config: Config, state: State, steps_before: int, extended_at: Sequence[int]) -> str:
  """What more steps do to the learning rate; `extended_at` is when the run was given more before."""
  steps, schedule = config.run.steps, config.optimizer.schedule
  text = f'resumes from step {state.step}, to {steps} instead of {steps_before} steps'
  if schedule == 'constant':
    return f'{text}; the learning rate is constant, so this is a run of {steps} steps like any other'
  updates, common = int(state.optimizer[-1].count), updates_in_common(config.optimizer, steps_before)
  if updates <= common:
    text += f'; up to here the {schedule} schedule of {steps} steps has the same learning rates'
    if extended_at:  # which may have changed those before it
      return f'{text} as that of {steps_before}, but the run was extended before, at step {extended_at[-1]}'
    return f'{text}, so this is a run of {steps} steps like any other'
  before, after = (float(make_schedule(config.optimizer, total)(updates)) for total in (steps_before, steps))
  return (
    f'{text}; from here on the {schedule} schedule is that of {steps} steps: the next learning rate is {after:.3g} '
    f'instead of {before:.3g}. The two schedules agree only up to update {common}, so the result is not that of a run '
    f'of {steps} steps from its start'
  )
