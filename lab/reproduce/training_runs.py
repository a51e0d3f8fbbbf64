"""Reproductions measured in training runs: trains the EXPERIMENT of the same file as train.py does."""

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console

from configs.flags import load_config
from lab.analysis import load_runs
from lab.cli import signals
from lab.commands.run_experiment import run_experiment
from lab.core import plan, registry
from lab.core.reproduction import Reproduction
from lab.core.run import Run
from lab.launch import launchers
from lab.reproduce import record
from training.code_version import PROJECT
from training.config import ConfigError
from training.identity import SEED_FIELDS, differences, identity
from training.provenance import combined

FULL_CONFIG = 'configs/small.py'


def train_and_measure(reproduction: Reproduction, scale: str, workdir: Path, console: Console) -> dict[str, Any]:
  """Trains the runs that are not finished yet, and returns the record of all of them.

  Args:
    reproduction: a reproduction with `read`; its file also declares the experiment.
    scale: `full` trains at the scale of configs/small.py, in <workdir>/full.
    workdir: the work directory of the experiment's runs.
    console: where to print the progress.

  Raises:
    ConfigError: if a run cannot be started, or failed.
    SystemExit: if training was stopped; running the command again resumes it.
  """
  experiment, runs = registry.find_experiment(reproduction.name), _planned(reproduction, scale, workdir)
  code = run_experiment(experiment, runs, launchers.local_launcher(), console, record.command(reproduction.name, scale))
  if code == signals.STOPPED:
    raise SystemExit(code)
  if code:
    raise ConfigError(
      f'a run of {experiment.name} failed: {record.command(reproduction.name, scale)} repeats the failed runs'
    )
  return measure_runs(reproduction, scale, workdir)


def runs_directory(reproduction: Reproduction, scale: str, workdir: Path) -> Path:
  """The directory of a reproduction's runs."""
  return (workdir / 'full' if scale == 'full' else workdir) / reproduction.name


def _planned(reproduction: Reproduction, scale: str, workdir: Path) -> list[Run]:
  experiment = registry.find_experiment(reproduction.name)
  config = load_config(str(PROJECT / (FULL_CONFIG if scale == 'full' else experiment.config)))
  directory = runs_directory(reproduction, scale, workdir)
  return plan.plan_runs(experiment, config, reproduction.at_scale(scale), directory.parent)


def measure_runs(reproduction: Reproduction, scale: str, workdir: Path) -> dict[str, Any]:
  """The record of finished runs; takes the same arguments as `train_and_measure`.

  Raises:
    ConfigError: if a run is missing, damaged, or has other settings; the message contains the command to run.
  """
  assert reproduction.read is not None
  experiment = registry.find_experiment(reproduction.name)
  directory = runs_directory(reproduction, scale, workdir)
  found = load_runs.load(experiment, directory)
  command = f'{record.command(reproduction.name, scale)} --workdir={workdir}'
  for variant, reasons in found.not_comparable.items():
    raise ConfigError(f'{directory / variant} cannot be pooled ({reasons[0]}): move it aside, and run {command}')
  runs = {(run.variant, run.seed): run for run in found.runs if not run.metrics.empty}
  for planned in _planned(reproduction, scale, workdir):
    variant, seed = planned.variant, planned.seed
    if (variant, seed) not in runs:
      raise ConfigError(f'{directory / variant} has no complete run of seed {seed}: train it with {command}')
    if differing := differences(runs[variant, seed].config, identity(planned.config)):
      raise ConfigError(
        f'{planned.directory} is a run with other settings than {reproduction.name} uses '
        f'({"; ".join(differing.values())}): train in another work directory with {command}_2'
      )
  found = dataclasses.replace(found, runs=tuple(run for run in found.runs if run.seed in experiment.seeds))
  seconds = sum(run.result['seconds'] for run in found.runs)
  first, trained_by = found.runs[0], combined(run.result for run in found.runs)
  return {
    **record.make_record(reproduction, scale, reproduction.read(found), seconds),
    'settings': {path: value for path, value in first.config.items() if path not in SEED_FIELDS},
    'seeds': list(experiment.seeds),
    'runs': len(found.runs),
    'data_checksum': first.result.get('data_checksum'),
    'jax_settings': trained_by.pop('settings'),
    'made_by': trained_by.pop('code'),
    **trained_by,
  }
