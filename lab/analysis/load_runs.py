"""Reads the runs of an experiment from its directory, and decides which are pooled, which are left out, and why."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab.analysis import comparability, ngram_baselines, results
from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import BITS, NATS, ON_TEST, Metric, RecordedRun
from lab.analysis.wording import format_seeds
from lab.core.experiment import Experiment
from training.config import ConfigError
from training.data.evaluation_subset import evaluation_tokens
from training.run_files.stored_run import read_config


def load(experiment: Experiment, directory: str | os.PathLike) -> ExperimentRuns:
  """Reads an experiment's directory, <workdir>/<experiment>.

  Raises:
    ConfigError: if it has no run of the declared variants.
  """
  found_results = results.find_finished_runs_of_experiment(experiment.name, directory)
  records = found_results.records
  order = {name: position for position, name in enumerate(experiment.variants)}
  found = sorted(
    (record for record in records if record['variant'] in order), key=lambda r: (order[r['variant']], r['seed'])
  )
  others = sorted({record['variant'] for record in records} - set(order))
  if not found:
    raise ConfigError(
      f'{directory} has runs of {", ".join(others)} but none of {", ".join(order)}: '
      f'train them with python train.py --experiment={experiment.name}'
    )
  notes = [*describe_missing(experiment, found), *found_results.left_out]
  if others:
    notes.append(f'variants not shown: {", ".join(others)}')
  notes += _extended(found)
  runs, duplicates = drop_duplicate_seeds([run for record in found if (run := read_run(record, notes))])
  notes += duplicates
  if not runs:
    raise ConfigError(f'{directory} has no complete run: {notes[-1]}')
  return assemble(experiment, directory, runs, records, notes)


def assemble(
  experiment: Experiment,
  directory: str | os.PathLike,
  runs: Sequence[RecordedRun],
  records: Iterable[Mapping[str, Any]],
  notes: Sequence[str],
  declared: bool = True,
) -> ExperimentRuns:
  """Selects the metric for runs that have been read, finds variants that are not comparable, reads n-gram baselines.

  Args:
    experiment: the declared experiment.
    directory: the directory with the n-gram baselines.
    runs: in the order of the variants.
    records: see `ExperimentRuns`; each gets `pooled`: `yes`, or `no: ` and the reason.
    notes: see `ExperimentRuns`.
    declared: whether variants may differ only as declared; otherwise they may differ in any setting.
  """
  runs_of = {name: own for name in experiment.variants if (own := [run for run in runs if run.variant == name])}
  refused = comparability.incomparable_variants(runs_of, experiment.variants if declared else None)
  compared = [run for run in runs if run.variant not in refused] or runs
  metric = BITS if any(run.result.get(BITS.column) is not None for run in compared) else NATS
  if all(run.result.get('learning_rate_tuned') for run in compared):
    on_test = ON_TEST[metric]
    scored = [run.result.get(on_test.column) for run in compared if run.status != 'diverged']
    metric = metric if None in scored else on_test  # older versions did not record a test loss
  counted = {str(run.directory) for run in runs}
  marked = [{**record, 'pooled': _pooled(record, experiment, counted, refused)} for record in records]
  baselines = _ngram_baselines(Path(directory), compared, metric)
  return ExperimentRuns(experiment, tuple(runs), marked, metric, baselines, tuple(notes), refused, declared)


def _pooled(
  record: Mapping[str, Any], experiment: Experiment, counted: set[str], refused: Mapping[str, Sequence[str]]
) -> str:
  """Whether a run enters the mean of its variant, and if not, why."""
  variant = record['variant']
  if variant not in experiment.variants:
    return 'no: variant not shown'
  if str(Path(record['directory'])) not in counted:
    return 'no: incomplete, or a copy of another seed'
  return f'no: {"; ".join(refused[variant])}' if variant in refused else 'yes'


def drop_duplicate_seeds(runs: Sequence[RecordedRun]) -> tuple[list[RecordedRun], list[str]]:
  """Drops runs that repeat another seed's run; returns the other runs, and a line for each dropped one."""
  distinct, notes = [], []
  for variant in dict.fromkeys(run.variant for run in runs):
    own = [run for run in runs if run.variant == variant]
    repeats = comparability.duplicate_seeds(own)
    distinct += [run for run in own if run.seed not in repeats]
    notes += [
      f'{variant}: seed {seed} repeats seed {first} (same initial values, dropout masks and data order); counted once'
      for seed, first in repeats.items()
    ]
  return distinct, notes


def read_run(record: Mapping[str, Any], notes: list[str]) -> RecordedRun | None:
  """Reads a run from its files; adds a note and returns None if it has no config.json."""
  directory = Path(record['directory'])
  config = read_config(directory)
  if config is None:
    notes.append(f'not counted: {directory} has a result but no config.json')
    return None
  try:
    metrics = results.load_metrics(directory)
  except ConfigError as error:
    metrics = pd.DataFrame()
    notes.append(f'{error}; until then its curve is not drawn and is left out of the mean curve')
  return RecordedRun(directory, record, {**comparability.DEFAULT_CONFIG, **config}, metrics)


def describe_missing(experiment: Experiment, records: Iterable[Mapping[str, Any]]) -> list[str]:
  """A line for each set of missing seeds, naming the variants that lack them unless all variants with runs do."""
  seeds: dict[str, set[int]] = {variant: set() for variant in experiment.variants}
  for record in records:
    seeds[record['variant']].add(record['seed'])
  lacking: dict[str, list[str]] = {}
  for variant, finished in seeds.items():
    absent = [seed for seed in experiment.seeds if seed not in finished]
    if absent:
      what = f'no finished run of {format_seeds(absent)}' if finished else 'no finished run'
      lacking.setdefault(what, []).append(variant)
  present = [variant for variant, finished in seeds.items() if finished]
  return [what if variants == present else f'{", ".join(variants)}: {what}' for what, variants in lacking.items()]


def _extended(records: Sequence[Mapping[str, Any]]) -> list[str]:
  """A line for each set of runs extended at the same steps, naming variants and seeds unless it is every run."""
  extended: dict[str, dict[str, list[int]]] = {}
  for record in records:
    if record.get('extended_at'):
      when = ', '.join(map(str, record['extended_at']))
      extended.setdefault(when, {}).setdefault(record['variant'], []).append(record['seed'])
  lines = []
  for when, variants in extended.items():
    count = sum(map(len, variants.values()))
    whose = '; '.join(f'{variant}, {format_seeds(seeds)}' for variant, seeds in variants.items())
    lines.append(f'{"all runs" if 1 < count == len(records) else whose}: extended at step {when}')
  return lines


def _ngram_baselines(directory: Path, runs: Sequence[RecordedRun], metric: Metric) -> dict[str, float]:
  """N-gram baselines on the split that the runs are compared on; in nats per token, only the unigram entropy is known.

  Empty if the runs read different texts, or if the file with the baselines belongs to another text.
  """
  if metric.unit == BITS.unit:
    checksums = {run.result.get('data_checksum') for run in runs}
    checksum = checksums.pop() if len(checksums) == 1 else None
    parts = {part for run in runs if (part := evaluation_tokens(run.result)) is not None}
    return ngram_baselines.read(directory, metric.split, checksum, parts.pop() if len(parts) == 1 else None) or {}
  if metric is not NATS:
    return {}
  entropies = {run.result['unigram_entropy'] for run in runs if run.result.get('unigram_entropy') is not None}
  return {'unigram': float(entropies.pop())} if len(entropies) == 1 else {}
