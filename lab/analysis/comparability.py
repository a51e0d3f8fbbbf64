"""Which runs may be pooled and compared: those that differ only in their seeds and in what their variants declare.

Settings are read from the config.json and result.json of each run, never from the current command line.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lab.analysis.recorded_run import RecordedRun
from lab.analysis.wording import format_seeds, format_setting
from lab.core.experiment import Changes
from training.config import IDEA, Config
from training.data.evaluation_subset import evaluation_tokens
from training.data.synthetic_tasks import TASKS
from training.identity import SEED_FIELDS, decides

TUNED_FIELDS = ('optimizer.learning_rate', 'optimizer.warmup_steps')  # may differ between tuned variants
DATA_CHECKSUM = 'the data checksum'
EVALUATION_TOKENS = 'run.final_evaluation_tokens'  # how much of the held-out splits was scored; 0: all
INIT_CHECKSUM = 'the checkpoint of run.init_from'
EXTENDED_AT = 'the step it was extended at'
TEXT_FIELDS = ('data.paths', 'data.text_field', 'data.tokenizer')  # irrelevant where the data checksums agree
TOKENIZATION_FIELDS = ('data.tokenizer', 'data.end_token')  # change the data checksum but not the text
SHOWN = 4  # differences that a message lists; summary.json has all
DEFAULT_CONFIG = Config().to_flat()


def comparable_settings(run: RecordedRun) -> dict[str, Any]:
  """All settings except the seeds that determine a run's numbers, by name; None for those that were not recorded."""
  config, result = {**DEFAULT_CONFIG, **run.config}, run.result
  found = {path: value for path, value in config.items() if decides(path) and path not in SEED_FIELDS}
  found[DATA_CHECKSUM] = result.get('data_checksum')
  found[EVALUATION_TOKENS] = evaluation_tokens(result)
  found[INIT_CHECKSUM] = (result.get('init_from') or {}).get('sha256')
  # Under a constant learning rate, extending a run gives the same numbers as training the longer run at once.
  extended = [] if config['optimizer.schedule'] == 'constant' else result.get('extended_at') or []
  found[EXTENDED_AT] = ', '.join(map(str, extended)) or 'none'
  settings = {name: value for name, value in (result.get('settings') or {}).items() if decides_random_numbers(name)}
  for change in result.get('environment_changed_at') or ():  # a run trained with two values lists both
    for name, (before, now) in change['changes'].items():
      if decides_random_numbers(name) and change['step'] < result['steps']:
        settings[name] = f'{before} up to step {change["step"]}, then {now}'
  return found | {f'the setting {name}': value for name, value in settings.items()}


def decides_random_numbers(setting: str) -> bool:
  """Whether a JAX setting determines which random numbers a seed produces."""
  return any(part in setting.lower() for part in ('prng', 'threefry', 'random_seed'))


def seeded_components(run: RecordedRun) -> dict[str, int]:
  """The seed of each component of a run that is random: initial values, dropout masks, data order."""
  config = {**DEFAULT_CONFIG, **run.config}
  found = {}
  if not config['run.init_from']:
    found['the initial values'] = config['run.init_seed']
  if config['model.dropout']:
    found['the dropout masks'] = config['run.init_seed']
  found['the training sequences' if config['data.task'] in TASKS else 'the data order'] = config['data.seed']
  return found


def duplicate_seeds(runs: Sequence[RecordedRun]) -> dict[int, int]:
  """Finds runs of a variant that repeat another seed's run, such as copies: {seed: the seed it repeats}."""
  found: dict[int, int] = {}
  originals: list[RecordedRun] = []
  for run in sorted(runs, key=lambda run: (any(run.config.get(path) != run.seed for path in SEED_FIELDS), run.seed)):
    same = [one for one in originals if seeded_components(one) == seeded_components(run) and not _differing(one, run)]
    if same:
      found[run.seed] = same[0].seed
    else:
      originals.append(run)
  return found


def incomparable_variants(
  runs_of: Mapping[str, Sequence[RecordedRun]], declared: Mapping[str, Changes] | None
) -> dict[str, tuple[str, ...]]:
  """Finds the variants that must not be pooled or compared, each with the differences that prevent it.

  The first variant whose runs are consistent is the reference that the others are compared with.

  Args:
    runs_of: the runs of each variant, the baseline first.
    declared: the changes that each variant declares; None: variants may differ in any setting.
  """
  found = {variant: inconsistencies(runs) for variant, runs in runs_of.items()}
  consistent = [variant for variant, reasons in found.items() if not reasons]
  for variant in consistent[1:]:
    found[variant] = _incompatibilities(consistent[0], variant, runs_of, declared)
  if consistent and declared is not None:
    found[consistent[0]] += _deviations(consistent[0], runs_of, declared)
  return {variant: tuple(reasons) for variant, reasons in found.items() if reasons}


def inconsistencies(runs: Sequence[RecordedRun]) -> list[str]:
  """Describes how the runs of one variant differ, apart from seeds: ['run.steps is 30 in seed 3, 150 in seeds 0-2']."""
  by_seed = {run.seed: comparable_settings(run) for run in runs}
  names = dict.fromkeys(name for settings in by_seed.values() for name in settings)
  reasons = []
  for name in names:
    values = {seed: settings.get(name) for seed, settings in by_seed.items()}
    if len({repr(value) for value in values.values() if value is not None}) > 1 and not _is_same_content(name, by_seed):
      reasons.append(f'{name} is {_by_value(values)}')
  parameters = {run.seed: run.result.get('parameters') for run in runs}
  if len(set(parameters.values())) > 1 and not reasons:
    reasons.append(f'the number of parameters is {_by_value(parameters)}')
  reasons += [f'{path} is {mixed}' for path in SEED_FIELDS if (mixed := _mixed_seeds(path, runs))]
  if not all({**DEFAULT_CONFIG, **run.config}['model.causal'] for run in runs):  # trained by an older version
    reasons.append('without a causal mask, each position attended to the token it predicts')
  return reasons + [line for run in runs if (line := _contradiction(run))]


def setting_differences(variant: Sequence[RecordedRun], baseline: Sequence[RecordedRun]) -> dict[str, tuple[Any, Any]]:
  """The settings that differ between the runs of two variants: name -> (variant, baseline)."""
  return _differing(variant[0], baseline[0])


def _incompatibilities(
  reference: str, variant: str, runs_of: Mapping[str, Sequence[RecordedRun]], declared: Mapping[str, Changes] | None
) -> list[str]:
  """Describes each difference between a variant and the reference that is not declared."""
  ours, theirs = runs_of[variant], runs_of[reference]
  allowed = set() if declared is None else {*declared[variant], *declared[reference]}
  if not (ours[0].config.get(IDEA) and theirs[0].config.get(IDEA)):
    allowed.add(IDEA)  # one of the two models is built in; they differ in a setting that names a part
  if all(run.result.get('learning_rate_tuned') for run in (*ours, *theirs)):
    allowed |= set(TUNED_FIELDS)
  differing = setting_differences(ours, theirs)
  if declared is None:
    allowed = {
      name
      for name in differing
      if name not in (DATA_CHECKSUM, EVALUATION_TOKENS) and not name.startswith('the setting ')
    }
  synthetic = ours[0].config.get('data.task') in TASKS
  if allowed & {*TOKENIZATION_FIELDS, *(['data.sequence_length'] if synthetic else [])} and _same_text(
    ours[0], theirs[0]
  ):
    differing.pop(DATA_CHECKSUM, None)
  reasons = [
    f'{name} is {format_setting(value)} ({reference} {format_setting(reference_value)})'
    for name, (value, reference_value) in differing.items()
    if name not in allowed
  ]
  seeds = {run.seed for run in ours} & {run.seed for run in theirs}
  for path in SEED_FIELDS:
    own, other = ({run.seed: run.config.get(path) for run in runs if run.seed in seeds} for runs in (ours, theirs))
    if own != other and path not in allowed:
      reasons.append(f'{path} is {_by_value(own)} ({reference} {_by_value(other)})')
  return reasons + ([] if declared is None else _deviations(variant, runs_of, declared))


def _same_text(one: RecordedRun, other: RecordedRun) -> bool:
  """Whether two runs on different tokens read the same text: by its checksum or, in older results, by its paths."""
  checksums = [run.result.get('text_checksum') for run in (one, other)]
  return checksums[0] == checksums[1] if all(checksums) else 'data.paths' not in _differing(one, other)


def _deviations(
  variant: str, runs_of: Mapping[str, Sequence[RecordedRun]], declared: Mapping[str, Changes]
) -> list[str]:
  """Describes where the runs of a variant deviate from its declaration, for example because it was edited later."""
  first = runs_of[variant][0]
  free = TUNED_FIELDS if first.result.get('learning_rate_tuned') else ()
  config = {**DEFAULT_CONFIG, **first.config}
  return [
    f'{path} is {format_setting(config[path])} (declared {format_setting(value)})'
    for path, value in declared[variant].items()
    if path in config and path not in free and config[path] != value
  ]


def _differing(one: RecordedRun, other: RecordedRun) -> dict[str, tuple[Any, Any]]:
  ours, theirs = comparable_settings(one), comparable_settings(other)
  return {
    name: (ours.get(name), theirs.get(name))
    for name in dict.fromkeys([*ours, *theirs])
    if ours.get(name) != theirs.get(name)
    and not _unknown(name, one, other, ours, theirs)
    and not _is_same_content(name, {0: ours, 1: theirs})
  }


def _unknown(
  name: str, one: RecordedRun, other: RecordedRun, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> bool:
  """Whether one of the two runs was written by a version that did not record this setting."""
  if name.startswith('the setting '):
    return one.result.get('settings') is None or other.result.get('settings') is None
  return name in (DATA_CHECKSUM, INIT_CHECKSUM, EVALUATION_TOKENS) and (
    ours.get(name) is None or theirs.get(name) is None
  )


def _is_same_content(name: str, by_seed: Mapping[int, Mapping[str, Any]]) -> bool:
  """Whether a setting is a path whose files have the same checksum in all runs, so that the path itself may differ."""
  checksum = DATA_CHECKSUM if name in TEXT_FIELDS else INIT_CHECKSUM if name == 'run.init_from' else None
  return (
    checksum is not None
    and len({settings[checksum] for settings in by_seed.values()}) == 1
    and all(settings[checksum] for settings in by_seed.values())
  )


def _contradiction(run: RecordedRun) -> str:
  """Describes where result.json contradicts config.json; empty if they agree."""
  config, result = {**DEFAULT_CONFIG, **run.config}, run.result
  pairs = {'optimizer.learning_rate': result.get('learning_rate')}
  if result.get('status') != 'diverged':
    pairs['run.steps'] = result.get('steps')
  return '; '.join(
    f'{path} is {format_setting(config[path])} in the config.json of seed {run.seed}, '
    f'{format_setting(value)} in its result.json'
    for path, value in pairs.items()
    if value is not None and config[path] != value
  )


def _mixed_seeds(path: str, runs: Sequence[RecordedRun]) -> str:
  """Which runs use the seed in their folder name and which a fixed one; empty if all do the same."""
  values = {run.seed: run.config.get(path) for run in runs}
  if len(set(values.values())) == 1 or all(value == seed for seed, value in values.items()):
    return ''
  return _by_value({seed: 'the seed' if value == seed else value for seed, value in values.items()})


def _by_value(values: Mapping[int, Any]) -> str:
  """The value of each group of seeds, the smallest group first: 30 in seed 3, 150 in seeds 0-2."""
  groups: dict[str, list[int]] = {}
  for seed, value in sorted(values.items()):
    groups.setdefault(format_setting(value), []).append(seed)
  if len(groups) == 1:
    return next(iter(groups))
  ordered = sorted(groups.items(), key=lambda group: (len(group[1]), group[1]))
  return ', '.join(f'{value} in {format_seeds(seeds)}' for value, seeds in ordered)
