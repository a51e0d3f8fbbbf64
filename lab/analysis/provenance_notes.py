"""The provenance of runs (code, device, package versions, JAX settings), and the notes on where it differs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab.analysis.comparability import decides_random_numbers
from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import RecordedRun
from lab.analysis.wording import format_seeds
from training.code_version import DIGEST_SHOWN, describe_code, other_code_note
from training.provenance import by_name
from training.run_files.result import is_unchecked

NOT_SET = 'not set'


def provenance_of(run: RecordedRun) -> dict[str, str]:
  """The code, device, layout, versions and JAX settings of a run, by name; without those that were not recorded."""
  found = {
    name: _format_setting(value) for name, value in by_name(run.result).items() if not decides_random_numbers(name)
  }
  code = run.result.get('code') or {}
  if code.get('digest'):
    found['code'] = code['digest'][:DIGEST_SHOWN] + _format_code_changes(run)
  return found


def provenance_notes(runs: ExperimentRuns) -> list[str]:
  """A line for each difference in provenance between the runs of a comparison, naming the runs with each value."""
  provenance = {(run.variant, run.seed): provenance_of(run) for run in runs.runs}
  notes = [other_code_note(run.result for run in runs.runs), _note_unchecked(runs)]
  notes += [note(run) for run in runs.runs for note in (_note_code_change, _note_environment_change)]
  lines = [note for note in notes if note]
  settings = _setting_names(runs.runs)
  for name in dict.fromkeys(name for found in provenance.values() for name in found):
    missing = NOT_SET if name in settings else 'not recorded'
    groups: dict[str, list[RecordedRun]] = {}
    for run in _comparable_in(runs.runs, name in settings):
      groups.setdefault(provenance[run.variant, run.seed].get(name, missing), []).append(run)
    if len(groups) > 1:
      shown = [
        f'{_format_code(own[0]) if name == "code" else value} in {format_runs(runs, own)}'
        for value, own in groups.items()
      ]
      lines.append(f'{name} differs: {"; ".join(shown)}')
  return lines


def _format_code(run: RecordedRun) -> str:
  """The code version of a run: its commit, and the digest by which versions are compared."""
  code = run.result.get('code')
  return describe_code(code) + _format_code_changes(run) if code else 'not recorded'


def _note_code_change(run: RecordedRun) -> str | None:
  """The note on a run whose code changed while it trained, or between its last step and its evaluation."""
  changes, name = run.result.get('code_changed_at') or (), f'{run.variant}, seed {run.seed}'
  steps = [str(change['step']) for change in changes if change['step'] < run.result['steps']]
  if steps:
    return f'{name}: the code changed at step {", ".join(steps)}, so this run mixes two versions of the model'
  return f'{name}: evaluated with other code than it was trained with' if changes else None


def _note_environment_change(run: RecordedRun) -> str | None:
  """The note on a run that was resumed with other settings or package versions, or on another device."""
  changes = run.result.get('environment_changed_at') or ()
  parts = [
    f'from step {change["step"]} on {", ".join(_format_changes(change["changes"]))}'
    if change['step'] < run.result['steps']
    else f'evaluated with {", ".join(_format_changes(change["changes"]))}'
    for change in changes
  ]
  return f'{run.variant}, seed {run.seed}: resumed in another environment: {"; ".join(parts)}' if parts else None


def _format_changes(changes: Mapping[str, Sequence[Any]]) -> list[str]:
  return [
    f'{name} {_format_setting(now)} instead of {_format_setting(before)}' for name, (before, now) in changes.items()
  ]


def _format_code_changes(run: RecordedRun) -> str:
  changes = run.result.get('code_changed_at') or ()
  return ''.join(f', from step {change["step"]} on {change["digest"][:DIGEST_SHOWN]}' for change in changes)


def _format_setting(value: Any) -> str:
  return NOT_SET if value is None else str(value)


def _note_unchecked(runs: ExperimentRuns) -> str | None:
  unchecked = [run for run in runs.runs if is_unchecked(run.result)]
  if not unchecked:
    return None
  which = format_runs(runs, unchecked)
  return f'written by an older version, without a checksum or a code version: {which}'


def differing_provenance(own: Sequence[RecordedRun], baseline: Sequence[RecordedRun]) -> list[str]:
  """The names of the provenance entries that differ between a variant's runs and the baseline's."""
  settings = _setting_names([*own, *baseline])
  differing = []
  for name in dict.fromkeys(name for run in [*own, *baseline] for name in provenance_of(run)):
    ours, theirs = (
      {provenance_of(run).get(name) for run in _comparable_in(runs, name in settings)} for runs in (own, baseline)
    )
    if ours and theirs and ours != theirs:
      differing.append(name)
  return differing


def _setting_names(runs: Iterable[RecordedRun]) -> set[str]:
  return {name for run in runs for name in run.result.get('settings') or ()}


def _comparable_in(runs: Iterable[RecordedRun], is_setting: bool) -> list[RecordedRun]:
  """The runs that can be compared in a value: all or, for a JAX setting, those that recorded their settings."""
  return [run for run in runs if run.result.get('settings') is not None or not is_setting]


def format_runs(runs: ExperimentRuns, own: Sequence[RecordedRun]) -> str:
  """Runs by variant, with their seeds unless they are all runs of the variant: baseline, post_norm (seeds 0, 3)."""
  parts = []
  for variant in dict.fromkeys(run.variant for run in own):
    seeds = [run.seed for run in own if run.variant == variant]
    complete = len(seeds) == len(runs.of(variant))
    parts.append(variant if complete else f'{variant} ({format_seeds(seeds)})')
  return ', '.join(parts)
