"""--tune: every variant gets the same grid of learning rates, on seeds kept for it, and the lowest loss chooses.

<workdir>/<experiment>/tuning/<variant>/lr_<rate>/seed_<k>: deep enough that they are not taken for the experiment's.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lab.analysis import results, tuned_learning_rates, tuning_results, wording
from lab.analysis.recorded_run import BITS, NATS
from lab.analysis.tuned_learning_rates import LEARNING_RATE
from lab.analysis.tuning_results import GridPoint, Tuning
from lab.commands.run_experiment import train_runs
from lab.core import plan
from lab.core.experiment import Changes, Experiment
from lab.core.run import Run
from lab.launch.launch_result import Launcher
from training.code_version import code_revision, distinct_versions
from training.config import Config, ConfigError
from training.files import Damaged
from training.metric_names import TRAIN_LOSS
from training.provenance import combined
from training.run_files.locks import REPORT_WITHIN, locked
from training.run_files.result import read_result

FINAL_ALONE = {'run.evaluations': 1}  # a choice is made by the final loss: the curve, a third of a run, is not measured


def tune(
  experiment: Experiment,
  scale: Config,
  changes: Changes,
  workdir: Path,
  launcher: Launcher,
  console: Console,
  command: str,
  extend: bool = False,
) -> int | None:
  """Trains the runs of the grid that are not finished, and writes <workdir>/<experiment>/tuned.csv.

  Args:
    experiment: the variants to tune, and the seeds that will be reported.
    scale: from the scale file.
    changes: given on the command line, by path.
    workdir: where all experiments are.
    launcher: has the runs trained; see lab/launch/launchers.py.
    console: where to print.
    command: makes the file again.
    extend: whether runs of fewer steps go on.

  Returns:
    None; or the code to exit with, and nothing is written: 1 if a run failed, the launcher's own if runs are left.

  Raises:
    ConfigError: before anything is compiled or written, if this cannot be.
  """
  tuned_learning_rates.check_seeds_disjoint(experiment, experiment.grid.seeds)
  for run in plan.plan_runs(experiment, scale, changes, workdir):
    plan.check_tuned_label(dataclasses.replace(run, tuned=True))
  runs = plan_grid(experiment, scale, changes, workdir)
  path, settings = (
    workdir / experiment.name / 'tuned.csv',
    tuned_learning_rates.tuning_settings(experiment, scale, changes),
  )
  kept = _kept(path, experiment, scale, changes, console)
  trained = train_runs(runs, launcher, console, extend)
  if trained.code is not None or trained.failed:
    return 1 if trained.code is None else trained.code
  before, points = _intact(path), tuning_results.mark_chosen([*(kept.points if kept else ()), *read_points(runs)])
  if before is None or set(before.points) != set(points):
    with locked(path.parent / 'lock', REPORT_WITHIN):
      declared = {**(kept.about['variants'] if kept else {}), **experiment.variants}
      about = {'command': command, 'code_revision': code_revision(), **_made_with(runs, kept)}
      about |= {'settings': settings, 'variants': {name: dict(own) for name, own in declared.items()}}
      tuning_results.write_tuning(Tuning(path, about, points))
  chosen = {point.variant: wording.format_number(point.learning_rate) for point in points if point.chosen}
  rates = ', '.join(f'{variant} {rate}' for variant, rate in chosen.items())
  console.print(f'learning rates, as chosen in {path}: {rates}', highlight=False)
  return None


def plan_grid(experiment: Experiment, scale: Config, changes: Changes, workdir: Path) -> list[Run]:
  """The runs that choose the rates: every variant at every point of the grid, with every tuning seed."""
  grid = experiment.grid
  variants, places = {}, {}
  for name, rate in itertools.product(experiment.variants, grid.learning_rates):
    variants[f'{name}_lr_{rate:g}'] = {**experiment.variants[name], LEARNING_RATE: rate}
    places[f'{name}_lr_{rate:g}'] = f'{name}/lr_{rate:g}'
  planned = dataclasses.replace(experiment, variants=variants, seeds=grid.seeds)
  folder = workdir / experiment.name / 'tuning'
  return [
    dataclasses.replace(
      run,
      experiment=f'{experiment.name}/tuning',
      variant=places[run.variant],
      directory=folder / places[run.variant] / f'seed_{run.seed}',
    )
    for run in plan.plan_runs(planned, scale, {**FINAL_ALONE, **changes}, workdir)
  ]


def read_points(runs: Sequence[Run]) -> list[GridPoint]:
  """What the finished runs of a grid came to, in bits per byte where there are bytes, and what they count as.

  Raises:
    ConfigError: if a log is damaged.
  """
  found = [read_result(run.directory) or {} for run in runs]
  in_bits = [result for result in found if result[BITS.column] is not None]
  measure = BITS if in_bits else NATS
  per_nat = in_bits[0][BITS.column] / in_bits[0]['val_loss'] if in_bits else 1.0
  points = []
  for run, result in zip(runs, found, strict=True):
    optimizer, status = run.config.optimizer, result['status']
    final, counted = result[measure.column], result[measure.column]
    if status == 'failed_to_learn':
      counted = max(final, result['unigram_entropy'] * per_nat)
    elif status == 'diverged':
      start = float(results.load_metrics(run.directory)[TRAIN_LOSS].iloc[0]) * per_nat
      final, counted = None, start if math.isfinite(start) else math.inf
    variant = run.variant.rpartition('/')[0]
    point = variant, optimizer.learning_rate, optimizer.warmup_steps, run.seed, status, final, counted, measure.unit
    points.append(GridPoint(*point))
  return points


def _intact(path: Path) -> Tuning | None:
  """A tuned.csv; None if it is not there, or is to be made again."""
  try:
    return tuning_results.read_tuning(path)
  except Damaged:
    return None


def _kept(path: Path, experiment: Experiment, scale: Config, changes: Changes, console: Console) -> Tuning | None:
  """What tuned.csv has of variants that are not tuned now: tuning some variants alone adds to it.

  Raises:
    ConfigError: if these were tuned otherwise, or it is damaged and had others: all of them must be tuned again.
  """
  try:
    before = tuning_results.read_tuning(path)
  except Damaged as error:
    folder = path.parent / 'tuning'
    tuned = sorted(place.name for place in folder.iterdir()) if folder.is_dir() else []
    lost = [name for name in tuned if name not in experiment.variants]
    if lost:
      raise ConfigError(f'{error.what}, and also had {", ".join(lost)}: tune all of them, without --variants') from None
    console.print(f'{error.what}: made again from its runs', markup=False, highlight=False, soft_wrap=True)
    return None
  others = [point for point in before.points if point.variant not in experiment.variants] if before else []
  if before is None or not others:
    return None
  there = tuned_learning_rates.tuning_differences(before, experiment, scale, changes)
  grid = experiment.grid
  if not there and (before.learning_rates, before.seeds) != (sorted(grid.learning_rates), sorted(grid.seeds)):
    there = 'another grid'
  if there:
    raise ConfigError(
      f'{path} has variants that were tuned otherwise ({there}): tune all of them again, without --variants, '
      f'or start this one with --workdir={path.parents[1]}_2'
    )
  return dataclasses.replace(before, points=tuple(others))


def _made_with(runs: Sequence[Run], kept: Tuning | None) -> dict[str, Any]:
  """Where the runs of the grid were trained, by the first of them, and every code version that trained one."""
  results_of_runs = [read_result(run.directory) or {} for run in runs]
  trained_by = combined(results_of_runs)
  codes = distinct_versions([*((kept.about.get('code') or ()) if kept else ()), *trained_by['code']])
  environment = {name: trained_by[name] for name in ('device', 'layout', 'versions')}
  return {'data_checksum': results_of_runs[0]['data_checksum'], **environment, 'code': codes}
