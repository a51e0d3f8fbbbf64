"""What runs were made with beside their settings: code, device, versions, settings of JAX; and where they differ."""

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
  """Code, device, layout, versions and settings of JAX of a run, by name; what was not recorded is left out."""
  found = {name: _told(value) for name, value in by_name(run.result).items() if not decides_random_numbers(name)}
  code = run.result.get('code') or {}
  if code.get('digest'):
    found['code'] = code['digest'][:DIGEST_SHOWN] + _changes(run)
  return found


def provenance_notes(runs: ExperimentRuns) -> list[str]:
  """A line for each thing that not all runs of a comparison were made with alike, naming which had what."""
  every = {(run.variant, run.seed): provenance_of(run) for run in runs.runs}
  told = [other_code_note(run.result for run in runs.runs), _unchecked(runs)]
  told += [line(run) for run in runs.runs for line in (_history, _moved)]
  lines = [line for line in told if line]
  settings = _settings(runs.runs)
  for name in dict.fromkeys(name for found in every.values() for name in found):
    missing = NOT_SET if name in settings else 'not recorded'
    groups: dict[str, list[RecordedRun]] = {}
    for run in _that_say(runs.runs, name in settings):
      groups.setdefault(every[run.variant, run.seed].get(name, missing), []).append(run)
    if len(groups) > 1:
      shown = [
        f'{_code(own[0]) if name == "code" else value} in {format_runs(runs, own)}' for value, own in groups.items()
      ]
      lines.append(f'{name} differs: {"; ".join(shown)}')
  return lines


def _code(run: RecordedRun) -> str:
  """The code of a run for people: its commit and the digest, which is what decides."""
  code = run.result.get('code')
  return describe_code(code) + _changes(run) if code else 'not recorded'


def _history(run: RecordedRun) -> str | None:
  """What is said of a run whose code changed on its way; after its last step, the change is of its evaluation alone."""
  changes, name = run.result.get('code_changed_at') or (), f'{run.variant}, seed {run.seed}'
  steps = [str(change['step']) for change in changes if change['step'] < run.result['steps']]
  if steps:
    return f'{name}: the code changed at step {", ".join(steps)}, so that this run mixes two models'
  return f'{name}: was evaluated by other code than it was trained by' if changes else None


def _moved(run: RecordedRun) -> str | None:
  """What is said of a run that was resumed under other settings, by other versions or on another device."""
  changes = run.result.get('environment_changed_at') or ()
  parts = [
    f'from step {change["step"]} on {", ".join(_moves(change["changes"]))}'
    if change['step'] < run.result['steps']
    else f'evaluated with {", ".join(_moves(change["changes"]))}'
    for change in changes
  ]
  return f'{run.variant}, seed {run.seed}: was resumed in another environment: {"; ".join(parts)}' if parts else None


def _moves(changes: Mapping[str, Sequence[Any]]) -> list[str]:
  return [f'{name} {_told(now)} instead of {_told(before)}' for name, (before, now) in changes.items()]


def _changes(run: RecordedRun) -> str:
  changes = run.result.get('code_changed_at') or ()
  return ''.join(f', from step {change["step"]} on {change["digest"][:DIGEST_SHOWN]}' for change in changes)


def _told(value: Any) -> str:
  return NOT_SET if value is None else str(value)


def _unchecked(runs: ExperimentRuns) -> str | None:
  unchecked = [run for run in runs.runs if is_unchecked(run.result)]
  if not unchecked:
    return None
  which = format_runs(runs, unchecked)
  return f'recorded by an older version, without a checksum and without the code that made it: {which}'


def differing_provenance(own: Sequence[RecordedRun], baseline: Sequence[RecordedRun]) -> list[str]:
  """What a variant's runs were made with that the baseline's were not, by name; settings where both have any."""
  settings = _settings([*own, *baseline])
  differing = []
  for name in dict.fromkeys(name for run in [*own, *baseline] for name in provenance_of(run)):
    ours, theirs = (
      {provenance_of(run).get(name) for run in _that_say(runs, name in settings)} for runs in (own, baseline)
    )
    if ours and theirs and ours != theirs:
      differing.append(name)
  return differing


def _settings(runs: Iterable[RecordedRun]) -> set[str]:
  return {name for run in runs for name in run.result.get('settings') or ()}


def _that_say(runs: Iterable[RecordedRun], a_setting: bool) -> list[RecordedRun]:
  """The runs that may be compared in one name: in a setting of JAX those alone that recorded any."""
  return [run for run in runs if run.result.get('settings') is not None or not a_setting]


def format_runs(runs: ExperimentRuns, own: Sequence[RecordedRun]) -> str:
  """Runs by variant; their seeds are named where not all runs of the variant are meant."""
  parts = []
  for variant in dict.fromkeys(run.variant for run in own):
    seeds = [run.seed for run in own if run.variant == variant]
    whole = len(seeds) == len(runs.of(variant))
    parts.append(variant if whole else f'{variant} ({format_seeds(seeds)})')
  return ', '.join(parts)
