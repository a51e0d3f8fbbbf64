"""The factors that a report's runs hold equal, and those that its intervals cover; read from the runs themselves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.analysis import wording
from lab.analysis.comparability import (
  DATA_CHECKSUM,
  INIT_CHECKSUM,
  TEXT_FIELDS,
  comparable_settings,
  seeded_components,
)
from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.initial_kernels import kernel_scheme
from lab.analysis.recorded_run import RecordedRun

Entries = Mapping[str, Mapping[str, Any]]


def interval_covers(runs: ExperimentRuns) -> str | None:
  """The sources of variation that the intervals cover, which differ between seeds; None if there are none."""
  several = [own for variant in runs.variants if len(own := runs.pooled(variant)) > 1]
  varied = [[name for name in seeded_components(own[0]) if _varies(name, own)] for own in several]
  common = [name for name in (varied[0] if varied else ()) if all(name in names for names in varied)]
  if not common:
    return None
  if len(common) == 1:
    text = f'{common[0]} only'
  else:
    text = f'{", ".join(common[:-1])} and {common[-1]}, which change together from seed to seed'
  for own, names in zip(several, varied, strict=True):
    more = [name for name in names if name not in common]
    text += f'; for {own[0].variant} also {" and ".join(more)}' if more else ''
  return text


def _varies(name: str, runs: Sequence[RecordedRun]) -> bool:
  return len({seeded_components(run).get(name) for run in runs}) > 1


def held_equal(runs: ExperimentRuns, entries: Entries, tuning_holds: bool) -> tuple[list[str], list[str]]:
  """Describes the factors that are equal in all compared variants, and those that differ between them.

  Args:
    runs: the runs of the experiment.
    entries: the summary entries of the compared variants.
    tuning_holds: whether one tuning chose the learning rates of all of them.
  """
  compared = [runs.pooled(variant) for variant in entries]
  equal: list[str] = []
  different: list[str] = []
  if not compared:
    return equal, different
  if len(compared) > 1:
    source = compared[0][0].config.get('run.init_from')
    whose = f'from {source}' if source else 'of parameters with the same path and shape, by seed'
    shared = (
      ('data order', ', by seed', _share_order),
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
    ('learning rate', [wording.format_compact(entry['learning_rate']) for entry in entries.values()]),
    ('warm-up', [f'{entry["warmup_steps"]} steps' for entry in entries.values()]),
    ('initialisation', [entry['initialisation'] for entry in entries.values()]),
  )
  for name, used in settings:
    (equal if len(set(used)) == 1 else different).append(f'{name} ({", ".join(dict.fromkeys(used))})')
  tuned = [entry['learning_rate_tuned'] for entry in entries.values()]
  if all(tuned) and tuning_holds:
    equal.append('tuning budget for the learning rate')
  elif any(tuned):
    different.append('tuning of the learning rate' + ('' if all(tuned) else ' (only some variants are tuned)'))
  return equal, different


def _share_order(compared: Sequence[Sequence[RecordedRun]]) -> bool:
  """Whether runs of the same seed read the same sequences in the same order."""

  def key(run: RecordedRun) -> tuple[Any, ...]:
    settings = comparable_settings(run)
    sources = TEXT_FIELDS if settings[DATA_CHECKSUM] else ()
    others = *sources, 'data.mask_documents'  # affects attention, not the order
    names = [name for name in settings if name.startswith('data.') and name not in others]
    names += [DATA_CHECKSUM, 'run.batch_size']
    return run.config['data.seed'], _code_digests(run), *(settings[name] for name in names)

  return _equal_by_seed(compared, key)


def _share_initial_values(compared: Sequence[Sequence[RecordedRun]]) -> bool:
  """Whether parameters with the same path and shape had the same initial values in runs of the same seed."""

  def key(run: RecordedRun) -> tuple[Any, ...]:
    settings, result = comparable_settings(run), run.result
    random = [settings[name] for name in settings if name.startswith('the setting ')]
    versions = [change['changes'].get('version of jax') for change in result.get('environment_changed_at') or ()]
    provenance = _code_digests(run), (result.get('versions') or {}).get('jax'), *filter(None, versions)
    return (
      run.config['run.init_seed'],
      settings['run.init_from'],
      settings[INIT_CHECKSUM],
      kernel_scheme(run.config),
      *random,
      *provenance,
    )

  return _equal_by_seed(compared, key)


def _code_digests(run: RecordedRun) -> list[str | None]:
  """The digests of the code versions that trained a run, in order."""
  changes = [change for change in run.result.get('code_changed_at') or () if change['step'] < run.result['steps']]
  last = changes[-1]['digest'] if changes else _training_digest(run)
  return [*(change.get('before') for change in changes), last]


def _training_digest(run: RecordedRun) -> str | None:
  """The digest of the code that trained all steps; a later version may have run the final evaluation."""
  later = run.result.get('code_changed_at') or ()
  return later[0].get('before') if later else (run.result.get('code') or {}).get('digest')


def _equal_by_seed(compared: Sequence[Sequence[RecordedRun]], key: Callable[[RecordedRun], Any]) -> bool:
  """Whether runs of the same seed have the same key, and every variant shares a seed with the first."""
  first, *others = ({run.seed for run in own} for own in compared)
  if any(first.isdisjoint(seeds) for seeds in others):
    return False
  keys: dict[int, set[str]] = {}
  for own in compared:
    for run in own:
      keys.setdefault(run.seed, set()).add(repr(key(run)))
  return all(len(found) == 1 for found in keys.values())
