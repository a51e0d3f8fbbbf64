"""An experiment's findings as one dict, summary.json: per variant a mean, a paired difference and a verdict."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from experiments import runs as experiment_runs
from experiments import statistics, words
from experiments.runs import SEED_PATHS, ExperimentRuns, Run
from experiments.tuning import Tuning, describe_choice

SEEDED = dict(zip(SEED_PATHS, ('the initial values', 'the order of the data'), strict=True))
DOES_NOT_COVER = 'the choice of text, the tuning, and other model sizes or lengths of training'
SHARE_NOTE = 'a schedule that ended earlier would reach it sooner'


def summarise(runs: ExperimentRuns, tuning: Tuning | None = None) -> dict[str, Any]:
  """What the runs of an experiment show, in numbers and words; all of it can be written as JSON.

  Args:
    runs: all there are.
    tuning: how the learning rates were chosen, for runs that are at those.
  """
  experiment, measure = runs.experiment, runs.measure
  variants = {name: _describe(runs, name) for name in runs.variants}
  if experiment.baseline in variants:
    _compare(runs, variants)
  equal, different = _held_equal(variants, experiment.baseline)
  checksums = _distinct(run.result.get('data_checksum') for run in runs.runs)
  chosen = describe_choice(tuning, variants, checksums) if tuning and measure.split == 'test' else None
  return {
    'experiment': experiment.name,
    'question': experiment.question,
    'baseline': experiment.baseline,
    'measure': {
      'column': measure.column,
      'unit': measure.unit,
      'margin': measure.margin,
      'split': measure.split,
    },
    'variants': variants,
    'yardsticks': dict(runs.yardsticks),
    'held_equal': equal,
    'not_held_equal': different,
    'interval': {'level': statistics.LEVEL, 'covers': _covered(runs), 'does_not_cover': DOES_NOT_COVER},
    'tuning': chosen,
    'notes': [*runs.notes, *(chosen['warnings'] if chosen else ())],
    'device': _distinct(run.result.get('device') for run in runs.runs),
    'layout': _distinct(run.result.get('layout') for run in runs.runs),
    'data_checksum': checksums,
    'versions': _versions(runs.runs),
    'seconds': sum(run.result.get('seconds') or 0 for run in runs.runs),
  }


def _describe(runs: ExperimentRuns, variant: str) -> dict[str, Any]:
  """What can be said of a variant alone."""
  own = runs.of(variant)
  first = own[0]
  finals = {run.seed: run.final(runs.measure) for run in own}
  values = [value for value in finals.values() if value is not None]
  low, high = statistics.interval(values) or (None, None)
  tests = [run.result.get('test_bits_per_byte') for run in own if run.final(runs.measure) is not None]
  tested = [value for value in tests if value is not None]
  status = Counter(run.status for run in own)
  return {
    'runs': {name: status[name] for name in ('completed', 'failed_to_learn', 'diverged')},
    'seeds': {str(seed): value for seed, value in finals.items()},
    'mean': float(np.mean(values)) if values else None,
    'low': low,
    'high': high,
    'test_mean': float(np.mean(tested)) if tested and len(tested) == len(tests) else None,
    **{name: first.result[name] for name in ('parameters', 'flops_per_token', 'learning_rate', 'learning_rate_tuned')},
    'tokens': first.config['run.steps'] * first.tokens_per_step,
    'warmup_steps': first.config['optimizer.warmup_steps'],
    'initialisation': _initialisation(first.config),
    'changes': _changes(runs, variant),
    'comparison': None,
    'token_multiplier': None,
    'sentence': '',
  }


def _compare(runs: ExperimentRuns, variants: dict[str, dict[str, Any]]) -> None:
  """Adds to each entry what needs the baseline: ratios, the paired difference, the verdict."""
  baseline = runs.experiment.baseline
  scores = {name: {run.seed: run.score(runs.measure) for run in runs.of(name)} for name in variants}
  comparisons = {
    name: statistics.compare(scores[name], scores[baseline], runs.measure.margin)
    for name in variants
    if name != baseline
  }
  p_values = {name: comparison.p for name, comparison in comparisons.items() if comparison.p is not None}
  adjusted = dict(zip(p_values, statistics.holm(list(p_values.values())), strict=True))
  for name, entry in variants.items():
    for quantity in ('parameters', 'flops_per_token', 'tokens'):
      entry[f'{quantity}_ratio'] = entry[quantity] / variants[baseline][quantity]
    where = words.conditions(entry, variants[baseline])
    entry['sentence'] = f'the baseline, at {where}'
    if name in comparisons:
      comparison = comparisons[name]
      entry['comparison'] = {
        **dataclasses.asdict(comparison),
        'differences': {str(seed): value for seed, value in comparison.differences.items()},
        'p_holm': adjusted.get(name),
      }
      entry['sentence'] = words.sentence(comparison, entry['runs'], runs.measure.unit, where)
      entry['token_multiplier'] = _token_multiplier(runs, name, comparison)


def _token_multiplier(runs: ExperimentRuns, variant: str, comparison: statistics.Comparison) -> dict[str, Any] | None:
  """How much sooner the better of the two reaches the other's final loss; only if the interval excludes 0."""
  if not comparison.direction or comparison.verdict.startswith('unstable'):
    return None
  pair = [variant, runs.experiment.baseline]
  faster, slower = pair if comparison.direction == 'better' else reversed(pair)
  curves = [
    experiment_runs.mean_curve((run for run in runs.of(name) if run.seed in comparison.differences), runs.measure)
    for name in (faster, slower)
  ]
  if any(curve.empty for curve in curves):
    return None
  tokens = curves[0].index.to_numpy(dtype='float64')
  share = statistics.token_share(tokens, curves[0].to_numpy(), curves[1].iloc[-1])
  if share is None:  # the curve is of a part of the split, and may disagree with the whole
    return None
  text = f'{faster} reaches the final loss of {slower} after {share:.0%} of its tokens ({1 / share:.2g} times fewer)'
  return {'faster': faster, 'share': share, 'multiplier': 1 / share, 'sentence': text, 'note': SHARE_NOTE}


def _covered(runs: ExperimentRuns) -> str | None:
  """What an interval covers: what differs between the seeds of a variant; None where there is one seed."""
  by_variant = [runs.of(variant) for variant in runs.variants]
  varied = [
    name for path, name in SEEDED.items() if any(len({run.config[path] for run in own}) > 1 for own in by_variant)
  ]
  if len(varied) == 2:
    return f'{" and ".join(varied)}, which change together from seed to seed'
  return f'{varied[0]} alone' if varied else None


def _initialisation(config: Mapping[str, Any]) -> str:
  if config['model.norm_placement'] == 'deepnorm':
    return f'{config["model.init"]} with the scale of DeepNorm'
  return f'{config["model.init"]} {"with" if config["model.init_depth_scale"] else "without"} depth scale'


def _held_equal(variants: Mapping[str, Mapping[str, Any]], baseline: str) -> tuple[list[str], list[str]]:
  """What every variant shares, and what differs between them, a phrase each."""
  equal, different = ['order of the data, and initial values of parameters of the same path and shape, by seed'], []
  entries = list(variants.values())
  for name, quantity in (('tokens', 'tokens'), ('parameters', 'parameters'), ('FLOPs a token', 'flops_per_token')):
    values = {entry[quantity] for entry in entries}
    if len(values) == 1:
      equal.append(f'{name} ({values.pop():,})')
    elif baseline in variants:
      ratios = [entry[f'{quantity}_ratio'] for entry in entries]
      different.append(f'{name} ({min(ratios):.3f} to {max(ratios):.3f} times the baseline)')
    else:
      different.append(f'{name} ({min(values):,} to {max(values):,})')
  settings = (
    ('learning rate', [words.short(entry['learning_rate']) for entry in entries]),
    ('warm-up', [f'{entry["warmup_steps"]} steps' for entry in entries]),
    ('initialisation', [entry['initialisation'] for entry in entries]),
  )
  for name, used in settings:
    (equal if len(set(used)) == 1 else different).append(f'{name} ({", ".join(dict.fromkeys(used))})')
  if all(entry['learning_rate_tuned'] for entry in entries):
    equal.append('the budget for tuning the learning rate')
  elif any(entry['learning_rate_tuned'] for entry in entries):
    different.append('tuning of the learning rate (of some variants alone)')
  return equal, different


def _changes(runs: ExperimentRuns, variant: str) -> dict[str, Any]:
  """In what a variant's config differs from the baseline's; as declared where the baseline has no run."""
  baseline = runs.of(runs.experiment.baseline)
  if not baseline:
    return dict(runs.experiment.variants[variant])
  theirs = baseline[0].config
  return {
    path: value
    for path, value in runs.of(variant)[0].config.items()
    if path not in SEED_PATHS and value != theirs.get(path)
  }


def base_config(runs: ExperimentRuns) -> dict[str, Any]:
  """The flat config of the first run, the baseline's if it has one, without its seeds."""
  return {path: value for path, value in runs.runs[0].config.items() if path not in SEED_PATHS}


def _distinct(values: Iterable[Any]) -> list[Any]:
  return list(dict.fromkeys(value for value in values if value is not None))


def _versions(runs: Iterable[Run]) -> dict[str, str]:
  """Package versions; two where runs were made with two."""
  versions: dict[str, list[str]] = {}
  for run in runs:
    for package, version in (run.result.get('versions') or {}).items():
      if version not in versions.setdefault(package, []):
        versions[package].append(version)
  return {package: ', '.join(found) for package, found in sorted(versions.items())}
