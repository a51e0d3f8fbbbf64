"""Reproductions that are read from runs: their EXPERIMENT is trained as train.py would, and its runs are measured."""

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


def reproduce(reproduction: Reproduction, scale: str, workdir: Path, console: Console) -> dict[str, Any]:
  """Trains the runs that are not finished, and makes the record of what all of them show.

  Args:
    reproduction: one with `read`; the file it is in declares the experiment.
    scale: `full` trains at the scale of configs/small.py, in a workdir of its own.
    workdir: where the experiment's runs are.
    console: where to print.

  Raises:
    ConfigError: if a run cannot be, or failed.
    SystemExit: if it was stopped, and should be run again.
  """
  experiment, runs = registry.find_experiment(reproduction.name), _planned(reproduction, scale, workdir)
  code = run_experiment(experiment, runs, launchers.local_launcher(), console, record.command(reproduction.name, scale))
  if code == signals.STOPPED:
    raise SystemExit(code)
  if code:
    raise ConfigError(f'a run of {experiment.name} failed: {record.command(reproduction.name, scale)} repeats it alone')
  return read_runs(reproduction, scale, workdir)


def runs_directory(reproduction: Reproduction, scale: str, workdir: Path) -> Path:
  """Where the runs of a reproduction are."""
  return (workdir / 'full' if scale == 'full' else workdir) / reproduction.name


def _planned(reproduction: Reproduction, scale: str, workdir: Path) -> list[Run]:
  experiment = registry.find_experiment(reproduction.name)
  config = load_config(str(PROJECT / (FULL_CONFIG if scale == 'full' else experiment.config)))
  directory = runs_directory(reproduction, scale, workdir)
  return plan.plan_runs(experiment, config, reproduction.at_scale(scale), directory.parent)


def read_runs(reproduction: Reproduction, scale: str, workdir: Path) -> dict[str, Any]:
  """The record of what finished runs show; the arguments are those of `reproduce`.

  Raises:
    ConfigError: if one of the runs is missing or damaged, saying what to run, or was made with other settings.
  """
  assert reproduction.read is not None
  experiment = registry.find_experiment(reproduction.name)
  directory = runs_directory(reproduction, scale, workdir)
  found = load_runs.load(experiment, directory)
  again = f'{record.command(reproduction.name, scale)} --workdir={workdir}'
  for variant, reasons in found.not_comparable.items():
    raise ConfigError(f'{directory / variant} cannot be pooled ({reasons[0]}): move it aside, and run {again}')
  runs = {(run.variant, run.seed): run for run in found.runs if not run.metrics.empty}
  for planned in _planned(reproduction, scale, workdir):
    variant, seed = planned.variant, planned.seed
    if (variant, seed) not in runs:
      raise ConfigError(f'{directory / variant} has no whole run of seed {seed}: make it with {again}')
    if differing := differences(runs[variant, seed].config, identity(planned.config)):
      raise ConfigError(
        f'{planned.directory} holds another run than {reproduction.name} is read from '
        f'({"; ".join(differing.values())}): make that with {again}_2'
      )
  found = dataclasses.replace(found, runs=tuple(run for run in found.runs if run.seed in experiment.seeds))
  seconds = sum(run.result['seconds'] for run in found.runs)
  made = record.make_record(reproduction, scale, reproduction.read(found), seconds)
  first, trained_by = found.runs[0], combined(run.result for run in found.runs)
  return {
    **made,
    'settings': {path: value for path, value in first.config.items() if path not in SEED_FIELDS},
    'seeds': list(experiment.seeds),
    'runs': len(found.runs),
    'data_checksum': first.result.get('data_checksum'),
    'jax_settings': trained_by.pop('settings'),
    'made_by': trained_by.pop('code'),
    **trained_by,
  }
