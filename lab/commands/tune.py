"""--tune: trains every variant on the same grid of learning rates, with separate seeds, and selects the best rates.

Its runs are in <workdir>/<experiment>/tuning/<variant>/lr_<rate>/seed_<k>, where they do not count as runs of the
experiment.
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

# The choice needs only the final loss; measuring a curve would take a third of a run.
FINAL_EVALUATION_ONLY = {'run.evaluations': 1}


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
  """Trains the unfinished runs of the grid, and writes <workdir>/<experiment>/tuned.csv.

  Args:
    experiment: the variants to tune, and the seeds of the reported runs.
    scale: the config of the scale file.
    changes: changes on the command line, by path.
    workdir: the work directory.
    launcher: trains the runs; see lab/launch/launchers.py.
    console: where to print.
    command: reproduces the file, which records it.
    extend: whether runs with fewer steps resume and train to the requested number.

  Returns:
    None if the file was written; otherwise the exit code: 1 if a run failed, the launcher's if runs are unfinished.

  Raises:
    ConfigError: if the tuning is impossible; before anything is compiled or written.
  """
  tuned_learning_rates.check_seeds_disjoint(experiment, experiment.grid.seeds)
  for run in plan.plan_runs(experiment, scale, changes, workdir):
    plan.check_tuned_label(dataclasses.replace(run, tuned=True))
  runs = plan_grid(experiment, scale, changes, workdir)
  path = workdir / experiment.name / 'tuned.csv'
  settings = tuned_learning_rates.tuning_settings(experiment, scale, changes)
  others = _tuning_of_other_variants(path, experiment, scale, changes, console)
  outcome = train_runs(runs, launcher, console, extend)
  if outcome.exit_code is not None or outcome.failed:
    return 1 if outcome.exit_code is None else outcome.exit_code
  before, points = _intact(path), tuning_results.mark_chosen([*(others.points if others else ()), *read_points(runs)])
  if before is None or set(before.points) != set(points):
    with locked(path.parent / 'lock', REPORT_WITHIN):
      declared = {**(others.about['variants'] if others else {}), **experiment.variants}
      about = {'command': command, 'code_revision': code_revision(), **_provenance(runs, others)}
      about |= {'settings': settings, 'variants': {name: dict(own) for name, own in declared.items()}}
      ideas = tuned_learning_rates.recorded_ideas(experiment, scale, changes)
      ideas = {**((others.about.get('ideas') or {}) if others else {}), **ideas}
      about |= {'ideas': ideas} if ideas else {}
      tuning_results.write_tuning(Tuning(path, about, points))
  chosen = {point.variant: wording.format_compact(point.learning_rate) for point in points if point.chosen}
  rates = ', '.join(f'{variant} {rate}' for variant, rate in chosen.items())
  console.print(f'tuned learning rates, from {path}: {rates}', highlight=False)
  return None


def plan_grid(experiment: Experiment, scale: Config, changes: Changes, workdir: Path) -> list[Run]:
  """Plans the runs of the grid: every variant at every learning rate with every tuning seed."""
  grid = experiment.grid
  variants, variant_paths = {}, {}
  for name, rate in itertools.product(experiment.variants, grid.learning_rates):
    variants[f'{name}_lr_{rate:g}'] = {**experiment.variants[name], LEARNING_RATE: rate}
    variant_paths[f'{name}_lr_{rate:g}'] = f'{name}/lr_{rate:g}'
  planned = dataclasses.replace(experiment, variants=variants, seeds=grid.seeds)
  folder = workdir / experiment.name / 'tuning'
  return [
    dataclasses.replace(
      run,
      experiment=f'{experiment.name}/tuning',
      variant=variant_paths[run.variant],
      directory=folder / variant_paths[run.variant] / f'seed_{run.seed}',
    )
    for run in plan.plan_runs(planned, scale, {**FINAL_EVALUATION_ONLY, **changes}, workdir)
  ]


def read_points(runs: Sequence[Run]) -> list[GridPoint]:
  """The losses of the finished runs of a grid, in bits per byte if the data has bytes, otherwise in nats per token.

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
  """Reads a tuned.csv; None if it does not exist or is damaged, and is therefore rebuilt."""
  try:
    return tuning_results.read_tuning(path)
  except Damaged:
    return None


def _tuning_of_other_variants(
  path: Path, experiment: Experiment, scale: Config, changes: Changes, console: Console
) -> Tuning | None:
  """The points of tuned.csv for variants not tuned by this command, which the new file keeps; None if there are none.

  Raises:
    ConfigError: if they were tuned with other settings, or the file is damaged: then all variants must be tuned again.
  """
  try:
    before = tuning_results.read_tuning(path)
  except Damaged as error:
    folder = path.parent / 'tuning'
    tuned = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    lost = [name for name in tuned if name not in experiment.variants]
    if lost:
      raise ConfigError(f'{error.what}; it also had {", ".join(lost)}: tune all variants, without --variants') from None
    console.print(f'{error.what}: rebuilt from its runs', markup=False, highlight=False, soft_wrap=True)
    return None
  points = [point for point in before.points if point.variant not in experiment.variants] if before else []
  if before is None or not points:
    return None
  differences = tuned_learning_rates.tuning_differences(before, experiment, scale, changes)
  grid = experiment.grid
  if not differences and (before.learning_rates, before.seeds) != (sorted(grid.learning_rates), sorted(grid.seeds)):
    differences = 'another grid'
  if differences:
    raise ConfigError(
      f'{path} has variants that were tuned with other settings ({differences}): tune all variants again, without '
      f'--variants, or start this tuning with --workdir={path.parents[1]}_2'
    )
  return dataclasses.replace(before, points=tuple(points))


def _provenance(runs: Sequence[Run], others: Tuning | None) -> dict[str, Any]:
  """The provenance of the runs of the grid, and every code version that trained them or the other variants."""
  results_of_runs = [read_result(run.directory) or {} for run in runs]
  trained_by = combined(results_of_runs)
  codes = distinct_versions([*((others.about.get('code') or ()) if others else ()), *trained_by['code']])
  environment = {name: trained_by[name] for name in ('device', 'layout', 'versions')}
  return {'data_checksum': results_of_runs[0]['data_checksum'], **environment, 'code': codes}
