"""Whether the learning rates that a tuning chose apply to the runs of a report."""

from collections.abc import Sequence

from lab.analysis import wording
from lab.analysis.comparability import DEFAULT_CONFIG, EVALUATION_TOKENS, TEXT_FIELDS, TUNED_FIELDS, comparable_settings
from lab.analysis.recorded_run import RecordedRun
from lab.analysis.tuning_results import Tuning
from lab.core.experiment import Experiment


def tuning_mismatches(tuning: Tuning, runs: Sequence[RecordedRun], experiment: Experiment) -> list[str]:
  """Lists the reasons why the learning rates that a tuning chose do not apply to these runs; empty if they apply."""
  lines: list[str] = []
  settings = {**DEFAULT_CONFIG, **tuning.about['settings']}
  for run in runs:
    chosen = tuning.chosen.get(run.variant)
    own = run.config['optimizer.learning_rate'], run.config['optimizer.warmup_steps']
    if chosen is None:
      lines.append(f'{run.variant} was not tuned')
    elif own != chosen:
      lines.append(f'{run.variant} runs at {_setting(own)} (tuned: {_setting(chosen)})')
    declared = experiment.variants[run.variant]
    if dict(tuning.about['variants'].get(run.variant, declared)) != dict(declared):
      lines.append(f'{run.variant} was tuned with other changes')
    same_text = run.result.get('data_checksum') == tuning.about['data_checksum']
    if not same_text:
      lines.append('the tuning used another text')
    free = {*declared, *TUNED_FIELDS, EVALUATION_TOKENS, *(TEXT_FIELDS if same_text else ())}
    lines += [
      f'{path} is {wording.format_setting(value)} ({wording.format_setting(settings[path])} in the tuning)'
      for path, value in comparable_settings(run).items()
      if path in settings and path not in free and value != settings[path]
    ]
    if run.seed in tuning.seeds:
      lines.append(f'seed {run.seed} was also used for tuning')
  return list(dict.fromkeys(lines))


def _setting(setting: tuple[float, int]) -> str:
  return f'learning rate {wording.format_compact(setting[0])} with warm-up {setting[1]} steps'
