"""What a report may say of its runs: what was held equal, and what an interval covers; from the runs alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.analysis import wording
from lab.analysis.comparability import (
  DEFAULTS,
  PART,
  SOURCE,
  TEXT,
  TEXT_PATHS,
  TUNED_PATHS,
  comparable_settings,
  seeded_components,
)
from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import RecordedRun
from lab.analysis.tuning_results import Tuning
from lab.core.experiment import Experiment

Entries = Mapping[str, Mapping[str, Any]]


def interval_covers(runs: ExperimentRuns) -> str | None:
  """What an interval covers: what differs between the seeds of a variant; None where there is one seed."""
  several = [own for variant in runs.variants if len(own := runs.pooled(variant)) > 1]
  varied = [[name for name in seeded_components(own[0]) if _varies(name, own)] for own in several]
  everywhere = [name for name in (varied[0] if varied else ()) if all(name in names for names in varied)]
  if not everywhere:
    return None
  if len(everywhere) == 1:
    text = f'{everywhere[0]} alone'
  else:
    text = f'{", ".join(everywhere[:-1])} and {everywhere[-1]}, which change together from seed to seed'
  for own, names in zip(several, varied, strict=True):
    more = [name for name in names if name not in everywhere]
    text += f'; of {own[0].variant} also {" and ".join(more)}' if more else ''
  return text


def _varies(name: str, runs: Sequence[RecordedRun]) -> bool:
  return len({seeded_components(run).get(name) for run in runs}) > 1


def held_equal(runs: ExperimentRuns, entries: Entries, tuning_holds: bool) -> tuple[list[str], list[str]]:
  """What the compared variants share, and what differs between them, a phrase each.

  Args:
    runs: of the experiment.
    entries: the entries in the summary of the variants that are compared.
    tuning_holds: whether one tuning chose the rates of all of them.
  """
  compared = [runs.pooled(variant) for variant in entries]
  equal: list[str] = []
  different: list[str] = []
  if not compared:
    return equal, different
  if len(compared) > 1:
    source = compared[0][0].config.get('run.init_from')
    whose = f'from {source}' if source else 'of parameters of the same path and shape, by seed'
    shared = (
      ('order of the data', ', by seed', _share_order),
      ('initial values', f' {whose}', _share_initial_values),
    )
    for name, how, share in shared:
      (equal if share(compared) else different).append(name + how if share(compared) else name)
  for name, quantity in (('tokens', 'tokens'), ('parameters', 'parameters'), ('FLOPs a token', 'flops_per_token')):
    values = {entry[quantity] for entry in entries.values()}
    if len(values) == 1:
      equal.append(f'{name} ({values.pop():,})')
    elif ratios := [entry[f'{quantity}_ratio'] for entry in entries.values() if f'{quantity}_ratio' in entry]:
      different.append(f'{name} ({min(ratios):.3f} to {max(ratios):.3f} times the baseline)')
    else:
      different.append(f'{name} ({min(values):,} to {max(values):,})')
  settings = (
    ('learning rate', [wording.format_number(entry['learning_rate']) for entry in entries.values()]),
    ('warm-up', [f'{entry["warmup_steps"]} steps' for entry in entries.values()]),
    ('initialisation', [entry['initialisation'] for entry in entries.values()]),
  )
  for name, used in settings:
    (equal if len(set(used)) == 1 else different).append(f'{name} ({", ".join(dict.fromkeys(used))})')
  tuned = [entry['learning_rate_tuned'] for entry in entries.values()]
  if all(tuned) and tuning_holds:
    equal.append('the budget for tuning the learning rate')
  elif any(tuned):
    different.append('tuning of the learning rate' + ('' if all(tuned) else ' (of some variants alone)'))
  return equal, different


def tuning_mismatches(tuning: Tuning, runs: Sequence[RecordedRun], experiment: Experiment) -> list[str]:
  """Where runs are not what a tuning chose, or are made otherwise than its own; empty where its choice holds."""
  lines: list[str] = []
  settings = {**DEFAULTS, **tuning.about['settings']}
  for run in runs:
    chosen = tuning.chosen.get(run.variant)
    own = run.config['optimizer.learning_rate'], run.config['optimizer.warmup_steps']
    if chosen is None:
      lines.append(f'{run.variant} was not tuned there')
    elif own != chosen:
      lines.append(f'{run.variant} runs at {_setting(own)}, and was to at {_setting(chosen)}')
    declared = experiment.variants[run.variant]
    if dict(tuning.about['variants'].get(run.variant, declared)) != dict(declared):
      lines.append(f'{run.variant} was another variant there')
    same_text = run.result.get('data_checksum') == tuning.about['data_checksum']
    if not same_text:
      lines.append('the text was another')
    free = {*declared, *TUNED_PATHS, PART, *(TEXT_PATHS if same_text else ())}
    lines += [
      f'{path} was {wording.format_value(settings[path])}, and is {wording.format_value(value)}'
      for path, value in comparable_settings(run).items()
      if path in settings and path not in free and value != settings[path]
    ]
    if run.seed in tuning.seeds:
      lines.append(f'seed {run.seed} chose the rates, too')
  return list(dict.fromkeys(lines))


def _setting(setting: tuple[float, int]) -> str:
  return f'learning rate {wording.format_number(setting[0])} with warm-up {setting[1]}'


def _share_order(compared: Sequence[Sequence[RecordedRun]]) -> bool:
  """Whether runs of the same seed read the same sequences in the same order."""

  def key(run: RecordedRun) -> tuple[Any, ...]:
    settings = comparable_settings(run)
    sources = TEXT_PATHS if settings[TEXT] else ()
    others = *sources, 'data.mask_documents'  # which decides what is attended to
    names = [name for name in settings if name.startswith('data.') and name not in others]
    names += [TEXT, 'run.batch_size']
    return run.config['data.seed'], _code(run), *(settings[name] for name in names)

  return _one_by_seed(compared, key)


def _share_initial_values(compared: Sequence[Sequence[RecordedRun]]) -> bool:
  """Whether parameters of the same path and shape began the same in runs of the same seed."""

  def key(run: RecordedRun) -> tuple[Any, ...]:
    settings, result = comparable_settings(run), run.result
    random = [settings[name] for name in settings if name.startswith('the setting ')]
    scheme = [
      settings['model.init'],
      settings['model.init_depth_scale'],
      settings['model.norm_placement'] == 'deepnorm',
    ]
    scheme += [settings['model.num_layers']] if any(scheme[1:]) else []  # the depth decides how far values are scaled
    versions = [change['changes'].get('version of jax') for change in result.get('environment_changed_at') or ()]
    made_by = _code(run), (result.get('versions') or {}).get('jax'), *filter(None, versions)
    return run.config['run.init_seed'], settings['run.init_from'], settings[SOURCE], *scheme, *random, *made_by

  return _one_by_seed(compared, key)


def _code(run: RecordedRun) -> list[str | None]:
  """The digests of the code that trained a run, one after the other."""
  changes = [change for change in run.result.get('code_changed_at') or () if change['step'] < run.result['steps']]
  last = changes[-1]['digest'] if changes else _first_of_later_changes(run)
  return [*(change.get('before') for change in changes), last]


def _first_of_later_changes(run: RecordedRun) -> str | None:
  """The digest that took the last step, of a run without a change before it: one after it evaluated the run alone."""
  later = run.result.get('code_changed_at') or ()
  return later[0].get('before') if later else (run.result.get('code') or {}).get('digest')


def _one_by_seed(compared: Sequence[Sequence[RecordedRun]], key: Callable[[RecordedRun], Any]) -> bool:
  """Whether all runs of the same seed have the same key, and every variant has a seed in common with the first."""
  first, *others = ({run.seed for run in own} for own in compared)
  if any(first.isdisjoint(seeds) for seeds in others):
    return False
  keys: dict[int, set[str]] = {}
  for own in compared:
    for run in own:
      keys.setdefault(run.seed, set()).add(repr(key(run)))
  return all(len(found) == 1 for found in keys.values())
