"""Reads the runs of an experiment from its directory: which are pooled, which are left out, and why."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab.analysis import comparability, ngram_baselines, results
from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import BITS, NATS, ON_TEST, Metric, RecordedRun
from lab.core.experiment import Experiment
from training.config import ConfigError
from training.data.evaluation_subset import evaluation_tokens
from training.run_files.stored_run import read_config


def load(experiment: Experiment, directory: str | os.PathLike) -> ExperimentRuns:
  """Reads an experiment's directory, <workdir>/<experiment>.

  Raises:
    ConfigError: where it holds no run of the declared variants.
  """
  found_files = results.find_experiment_runs(experiment.name, directory)
  records = found_files.records
  order = {name: position for position, name in enumerate(experiment.variants)}
  found = sorted(
    (record for record in records if record['variant'] in order), key=lambda r: (order[r['variant']], r['seed'])
  )
  others = sorted({record['variant'] for record in records} - set(order))
  if not found:
    raise ConfigError(
      f'{directory} holds runs of {", ".join(others)}, none of {", ".join(order)}: '
      f'make some with python train.py --experiment={experiment.name}'
    )
  notes = [*describe_missing(experiment, found), *found_files.left_out]
  if others:
    notes.append(f'not shown here: {", ".join(others)}')
  notes += _extended(found)
  runs, said = drop_duplicate_seeds([run for record in found if (run := read_run(record, notes))])
  notes += said
  if not runs:
    raise ConfigError(f'{directory} holds no whole run: {notes[-1]}')
  return assemble(experiment, directory, runs, records, notes)


def assemble(
  experiment: Experiment,
  directory: str | os.PathLike,
  runs: Sequence[RecordedRun],
  records: Iterable[Mapping[str, Any]],
  notes: Sequence[str],
  declared: bool = True,
) -> ExperimentRuns:
  """Runs that have been read, with what they are compared by, and which of them are not comparable.

  Args:
    experiment: what was declared.
    directory: where the n-gram baselines are.
    runs: in the order of the variants.
    records: see `ExperimentRuns`; gets `pooled`: `yes`, or `no: ` and the reason.
    notes: see `ExperimentRuns`.
    declared: whether variants may differ in what they declare alone; else whatever differs is what is compared.
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
  """Whether a run is in the means of its variant, in words."""
  variant = record['variant']
  if variant not in experiment.variants:
    return 'no: not shown here'
  if str(Path(record['directory'])) not in counted:
    return 'no: not a whole run of its own'
  return f'no: {"; ".join(refused[variant])}' if variant in refused else 'yes'


def drop_duplicate_seeds(runs: Sequence[RecordedRun]) -> tuple[list[RecordedRun], list[str]]:
  """The runs without those that are another seed's over again, and a line for each of these."""
  kept, notes = [], []
  for variant in dict.fromkeys(run.variant for run in runs):
    own = [run for run in runs if run.variant == variant]
    repeats = comparability.duplicate_seeds(own)
    kept += [run for run in own if run.seed not in repeats]
    notes += [
      f'{variant}: seed {seed} is seed {first} over again (nothing that a seed decides differs), and counts once'
      for seed, first in repeats.items()
    ]
  return kept, notes


def read_run(record: Mapping[str, Any], notes: list[str]) -> RecordedRun | None:
  """A run from its files; None, and a note, where what it was is not known."""
  directory = Path(record['directory'])
  config = read_config(directory)
  if config is None:
    notes.append(f'not counted: {directory} has a result and no config.json')
    return None
  try:
    metrics = results.load_metrics(directory)
  except ConfigError as error:
    metrics = pd.DataFrame()
    notes.append(f'{error}; until then it is in no curve and no mean of curves')
  return RecordedRun(directory, record, {**comparability.DEFAULTS, **config}, metrics)


def describe_missing(experiment: Experiment, records: Iterable[Mapping[str, Any]]) -> list[str]:
  """A line for all variants that lack the same runs; where that is every one that has any, they are not named."""
  seeds: dict[str, set[int]] = {variant: set() for variant in experiment.variants}
  for record in records:
    seeds[record['variant']].add(record['seed'])
  lacking: dict[str, list[str]] = {}
  for variant, finished in seeds.items():
    absent = [seed for seed in experiment.seeds if seed not in finished]
    if absent:
      what = f'no finished run of {_seeds(absent)}' if finished else 'no finished run'
      lacking.setdefault(what, []).append(variant)
  present = [variant for variant, finished in seeds.items() if finished]
  return [what if variants == present else f'{", ".join(variants)}: {what}' for what, variants in lacking.items()]


def _extended(records: Sequence[Mapping[str, Any]]) -> list[str]:
  """A line for all runs that were extended at the same steps: by variant and seed, unless it is all runs there are."""
  alike: dict[str, dict[str, list[int]]] = {}
  for record in records:
    if record.get('extended_at'):
      when = ', '.join(map(str, record['extended_at']))
      alike.setdefault(when, {}).setdefault(record['variant'], []).append(record['seed'])
  lines = []
  for when, variants in alike.items():
    count = sum(map(len, variants.values()))
    whose = '; '.join(f'{variant}, {_seeds(seeds)}' for variant, seeds in variants.items())
    lines.append(f'{"all runs" if 1 < count == len(records) else whose}: extended at step {when}')
  return lines


def _seeds(seeds: list[int]) -> str:
  return ('seed ' if len(seeds) == 1 else 'seeds ') + ', '.join(map(str, seeds))


def _ngram_baselines(directory: Path, runs: Sequence[RecordedRun], metric: Metric) -> dict[str, float]:
  """N-gram models of the split that the runs are compared on; in nats a token, result.json has the unigram entropy.

  There are none where the runs are not all of one text, or where the file beside them is of another.
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
