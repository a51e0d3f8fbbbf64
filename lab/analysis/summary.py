"""Summarises the runs of an experiment as summary.json: a mean, a paired difference and a verdict per variant."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from lab.analysis import comparability, provenance_notes, recorded_run, statistics, verdict_wording, wording
from lab.analysis.controlled_factors import held_equal, interval_covers
from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.initial_kernels import describe_initialisation
from lab.analysis.recorded_run import RecordedRun
from lab.analysis.tuning_mismatches import tuning_mismatches
from lab.analysis.tuning_results import Tuning, describe_tuning
from training.data.evaluation_subset import evaluation_tokens
from training.identity import SEED_FIELDS

NOT_COMPARABLE = 'not comparable'
SHOWN = 12  # differing settings that a sentence lists
NOT_COVERED = 'the choice of text, the tuning, other model sizes or other lengths of training'
MULTIPLIER_NOTE = 'a learning-rate schedule that ends earlier would reach it sooner'


def summarise(runs: ExperimentRuns, tuning: Tuning | None = None) -> dict[str, Any]:
  """Summarises the runs of an experiment in numbers and sentences; the result can be written as JSON.

  Args:
    runs: the finished runs.
    tuning: the tuning that chose the learning rates, if the runs use tuned rates.
  """
  experiment, metric = runs.experiment, runs.metric
  variants = {name: _variant_entry(runs, name) for name in runs.variants}
  compared = {name: entry for name, entry in variants.items() if entry['pooled']}
  if experiment.baseline in compared:
    _add_comparisons(runs, compared)
  _add_verdicts(runs, variants)
  chosen = _tuning_entry(runs, tuning) if tuning and metric.split == 'test' else None
  equal, different = held_equal(runs, compared, bool(chosen and chosen['holds']))
  return {
    'experiment': experiment.name,
    'question': experiment.question,
    'baseline': experiment.baseline,
    'measure': {
      'column': metric.column,
      'unit': metric.unit,
      'margin': metric.margin,
      'split': metric.split,
    },
    'variants': variants,
    'yardsticks': dict(runs.ngram_baselines),
    'held_equal': equal,
    'not_held_equal': different,
    'interval': {'level': statistics.LEVEL, 'covers': interval_covers(runs), 'does_not_cover': NOT_COVERED},
    'tuning': chosen,
    'notes': [
      *runs.notes,
      *_note_partial_evaluation(runs),
      *_note_incomparable_curves(runs),
      *_note_dropped_updates(runs),
      *_note_partial_tuning(runs),
      *provenance_notes.provenance_notes(runs),
      *(chosen['warnings'] if chosen else ()),
    ],
    'device': _distinct(run.result.get('device') for run in runs.runs),
    'layout': _distinct(run.result.get('layout') for run in runs.runs),
    'data_checksum': _distinct(run.result.get('data_checksum') for run in runs.runs),
    'versions': _versions(runs.runs),
    'seconds': sum(run.result.get('seconds') or 0 for run in runs.runs),
  }


def _note_partial_evaluation(runs: ExperimentRuns) -> list[str]:
  """A note if the final losses were measured on a part of the split."""
  name = 'test' if runs.metric.split == 'test' else 'val'
  parts = _distinct(
    (run.result[f'{name}_tokens'], run.result[f'{name}_tokens_of'])
    for run in runs.runs
    if evaluation_tokens(run.result)
  )
  return [
    f'losses are measured on a fixed, evenly spread subset of the {runs.metric.split} split: {scored:,} of {of:,} '
    'tokens (run.final_evaluation_tokens=0 scores all)'
    for scored, of in parts
  ]


def _note_incomparable_curves(runs: ExperimentRuns) -> list[str]:
  """A note if the validation curves of the compared runs were measured on different parts of the split."""
  parts: dict[tuple[int, int], list[RecordedRun]] = {}
  for variant in runs.variants:
    for run in runs.pooled(variant):
      parts.setdefault(_part_of_curve(run), []).append(run)
  if len(parts) < 2:
    return []
  which = ', '.join(
    f'{provenance_notes.format_runs(runs, own)}: {sequences} sequences of {length} tokens'
    for (sequences, length), own in parts.items()
  )
  return [f'validation curves were measured on different parts of the split and are not comparable ({which})']


def _note_dropped_updates(runs: ExperimentRuns) -> list[str]:
  """A note for each run with run.on_nonfinite=skip that dropped updates."""
  return [
    f'{run.variant}, seed {run.seed}: {dropped} of {run.result["steps"]} updates were not finite and were dropped'
    for run in runs.runs
    if (dropped := run.result.get('dropped_updates'))
  ]


def _note_partial_tuning(runs: ExperimentRuns) -> list[str]:
  """A note for each variant whose learning rate is recorded as tuned in only some of its runs."""
  lines = []
  for variant in runs.variants:
    tuned = [run for run in runs.of(variant) if run.result.get('learning_rate_tuned')]
    if 0 < len(tuned) < len(runs.of(variant)):
      lines.append(
        f'the learning rate was tuned in {provenance_notes.format_runs(runs, tuned)}, and set by hand in its other runs'
      )
  return lines


def _tuning_entry(runs: ExperimentRuns, tuning: Tuning) -> dict[str, Any]:
  """Describes how the learning rates were chosen or, if the tuning does not apply to these runs, why it does not."""
  pooled = [run for variant in runs.variants for run in runs.pooled(variant)]
  described = describe_tuning(tuning, runs.variants, _distinct(run.result.get('data_checksum') for run in pooled))
  mismatches = tuning_mismatches(tuning, pooled, runs.experiment)
  if mismatches:
    described['sentence'] = (
      f'the tuning does not apply to these runs: {wording.join_phrases(mismatches, comparability.SHOWN)}'
    )
  return {**described, 'holds': not mismatches, 'contradictions': mismatches}


def _variant_entry(runs: ExperimentRuns, variant: str) -> dict[str, Any]:
  """The summary of one variant, without the values that depend on the baseline."""
  own, pooled = runs.of(variant), runs.pooled(variant)
  first = own[0]
  values = [value for run in pooled if (value := run.final(runs.metric)) is not None]
  low, high = statistics.interval(values) or (None, None)
  status = Counter(run.status for run in own)
  return {
    'name': first.folder_variant,
    'pooled': bool(pooled),
    'not_comparable': list(runs.not_comparable.get(variant, ())),
    'runs': {name: status[name] for name in ('completed', 'failed_to_learn', 'diverged')},
    'seeds': {str(run.seed): run.final(runs.metric) for run in own},
    'mean': float(np.mean(values)) if values else None,
    'low': low,
    'high': high,
    **{
      name: _shared((run.result.get(name, False) for run in own), bool(pooled))
      for name in ('parameters', 'flops_per_token', 'learning_rate')
    },
    'learning_rate_tuned': all(run.result.get('learning_rate_tuned') for run in own),
    'tokens': _shared((run.config['run.steps'] * run.tokens_per_step for run in own), bool(pooled)),
    'warmup_steps': _shared((run.config['optimizer.warmup_steps'] for run in own), bool(pooled)),
    'initialisation': describe_initialisation(first.config),
    'changes': _changes(runs, variant),
    'differs_in': None,
    'comparison': None,
    'token_multiplier': None,
    'verdict': '',
    'sentence': '',
  }


def _shared(values: Iterable[Any], pooled: bool) -> Any:
  """The value shared by all runs of a variant; None if they differ and are therefore not pooled."""
  found = list(dict.fromkeys(values))
  return found[0] if len(found) == 1 or pooled else None


def _add_verdicts(runs: ExperimentRuns, variants: dict[str, dict[str, Any]]) -> None:
  """Adds the verdict to each entry, and the sentence to entries that are not compared with the baseline."""
  baseline = runs.experiment.baseline
  for name, entry in variants.items():
    if not entry['pooled']:
      entry['verdict'] = NOT_COMPARABLE
      entry['sentence'] = f'{NOT_COMPARABLE}: {wording.join_phrases(entry["not_comparable"], comparability.SHOWN)}'
    elif entry['comparison']:
      entry['verdict'] = entry['comparison']['verdict']
    elif name == baseline:
      entry['verdict'] = 'baseline'
    elif baseline in variants:
      entry['verdict'] = NOT_COMPARABLE
      entry['sentence'] = f'{NOT_COMPARABLE}: the runs of its baseline, {baseline}, are themselves not comparable'
    else:
      entry['verdict'] = 'no baseline to compare with'


def _add_comparisons(runs: ExperimentRuns, variants: dict[str, dict[str, Any]]) -> None:
  """Adds the values that depend on the baseline to each entry: ratios, the paired difference and its sentence."""
  baseline = runs.experiment.baseline
  scores = {name: {run.seed: run.score(runs.metric) for run in runs.pooled(name)} for name in variants}
  comparisons = {
    name: statistics.compare_paired(scores[name], scores[baseline], runs.metric.margin)
    for name in variants
    if name != baseline
  }
  p_values = {name: comparison.p for name, comparison in comparisons.items() if comparison.p is not None}
  adjusted = dict(zip(p_values, statistics.holm(list(p_values.values())), strict=True))
  for name, entry in variants.items():
    for quantity in ('parameters', 'flops_per_token', 'tokens'):
      entry[f'{quantity}_ratio'] = entry[quantity] / variants[baseline][quantity]
    where = verdict_wording.describe_conditions(entry, variants[baseline])
    entry['sentence'] = f'the baseline, at {where}'
    if name in comparisons:
      comparison = comparisons[name]
      entry['comparison'] = {
        **dataclasses.asdict(comparison),
        'differences': {str(seed): value for seed, value in comparison.differences.items()},
        'p_holm': adjusted.get(name),
      }
      own, theirs = runs.pooled(name), runs.pooled(baseline)
      if not runs.declared:
        entry['differs_in'] = list(comparability.setting_differences(own, theirs))
        where = (
          f'{where}; differs from the baseline in {wording.join_phrases(entry["differs_in"], SHOWN) or "no setting"}'
        )
      provenance = provenance_notes.differing_provenance(own, theirs)
      entry['sentence'] = verdict_wording.verdict_sentence(
        comparison, entry['runs'], runs.metric.unit, where
      ) + verdict_wording.describe_provenance_differences(provenance)
      entry['token_multiplier'] = _token_multiplier(runs, name, comparison)


def _token_multiplier(
  runs: ExperimentRuns, variant: str, comparison: statistics.PairedComparison
) -> dict[str, Any] | None:
  """How many times fewer tokens the better of two variants needs to reach the other's final loss.

  None if the interval of the difference includes 0, or the curves cannot be compared.
  """
  if not comparison.direction or comparison.verdict.startswith('unstable'):
    return None
  pair = [variant, runs.experiment.baseline]
  if len({_part_of_curve(run) for name in pair for run in runs.pooled(name)}) > 1:
    return None  # the curves were measured on different parts of the split
  faster, slower = pair if comparison.direction == 'better' else reversed(pair)
  paired = [[run for run in runs.pooled(name) if run.seed in comparison.differences] for name in (faster, slower)]
  if any(run.curve(runs.metric).empty for own in paired for run in own):
    return None
  curves = [recorded_run.mean_curve(own, runs.metric) for own in paired]
  if any(curve.empty for curve in curves):
    return None
  tokens = curves[0].index.to_numpy(dtype='float64')
  share = statistics.token_share(tokens, curves[0].to_numpy(), curves[1].iloc[-1])
  if share is None:  # the curve is measured on a part of the split and may disagree with the final loss
    return None
  text = f'{faster} reaches the final loss of {slower} after {share:.0%} of its tokens ({1 / share:.2g} times fewer)'
  return {'faster': faster, 'share': share, 'multiplier': 1 / share, 'sentence': text, 'note': MULTIPLIER_NOTE}


def _part_of_curve(run: RecordedRun) -> tuple[int, int]:
  """The number and length of the validation sequences that a run's curve is measured on."""
  return run.config['run.evaluation_batches'] * run.config['run.batch_size'], run.config['data.sequence_length']


def _changes(runs: ExperimentRuns, variant: str) -> dict[str, Any]:
  """The fields in which a variant's config differs from the baseline's; as declared if the baseline has no run."""
  baseline = runs.of(runs.experiment.baseline)
  if not baseline:
    return dict(runs.experiment.variants[variant])
  theirs = baseline[0].config
  return {
    path: value
    for path, value in runs.of(variant)[0].config.items()
    if path not in SEED_FIELDS and value != theirs.get(path)
  }


def base_config(runs: ExperimentRuns) -> dict[str, Any]:
  """The flat config of the first run, which is the baseline's if it has runs, without the seeds."""
  return {path: value for path, value in runs.runs[0].config.items() if path not in SEED_FIELDS}


def _distinct(values: Iterable[Any]) -> list[Any]:
  return list(dict.fromkeys(value for value in values if value is not None))


def _versions(runs: Iterable[RecordedRun]) -> dict[str, str]:
  """The version of each package; if the runs used several versions, all of them."""
  versions: dict[str, list[str]] = {}
  for run in runs:
    for package, version in (run.result.get('versions') or {}).items():
      if version not in versions.setdefault(package, []):
        versions[package].append(version)
  return {package: ', '.join(found) for package, found in sorted(versions.items())}
