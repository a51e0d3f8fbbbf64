"""Labels of variants in tables and figures: --labels='post_norm=Post-LN,baseline=Pre-Norm'."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import RecordedRun
from lab.analysis.tuning_results import Tuning
from lab.core.experiment import Experiment
from lab.figures.figure_style import missing_glyphs
from training.config import ConfigError
from training.known_names import check_names

LONGEST = 80


def parse_labels(given: Sequence[str], variants: Iterable[str]) -> dict[str, str]:
  """Parses --labels into the label of each variant that has one.

  Args:
    given: items such as `post_norm=Post-LN`; the name of a variant may contain a =.
    variants: the names of all variants.

  Raises:
    ConfigError: for an item that cannot be parsed, an unknown variant (with the nearest known one), or a label that two
      variants would share.
  """
  variants, labels = list(variants), {}
  for text in given:
    variant = max((name for name in variants if text.startswith(f'{name}=')), key=len, default=None)
    if variant is None:
      name, separator, _ = text.partition('=')
      if not separator:
        raise ConfigError(
          f'--labels: cannot read {text!r}; write variant=label, as in post_norm=Post-LN; quote '
          'a label that contains a comma, as in --labels=\'"post_norm=Post-LN, tuned"\''
        )
      check_names([name], variants, 'variant in --labels')
    label = text.removeprefix(f'{variant}=').strip()
    if not label or len(label) > LONGEST or not label.isprintable() or set('$\\') & set(label):
      raise ConfigError(
        f'--labels: {text!r}: a label must have 1 to {LONGEST} printable characters other than $ and \\'
      )
    if missing := missing_glyphs(label):
      raise ConfigError(f'--labels: {text!r}: the font of the figures has no {missing[0]!r}: choose another label')
    labels[str(variant)] = label
  shown = [labels.get(name, name) for name in variants]
  duplicate = next((label for label in shown if shown.count(label) > 1), None)
  if duplicate is not None:
    raise ConfigError(f'--labels: two variants would have the label {duplicate!r}')
  return labels


def relabel(runs: ExperimentRuns, labels: Mapping[str, str]) -> ExperimentRuns:
  """The runs with their variants renamed to their labels; `records` keep the folder names."""
  if not labels:
    return runs

  def label(name: str) -> str:
    return labels.get(name, name)

  return dataclasses.replace(
    runs,
    experiment=relabel_experiment(runs.experiment, labels),
    runs=tuple(with_label(run, label(run.variant)) for run in runs.runs),
    records=[{**record, 'label': label(record.get('label', record['variant']))} for record in runs.records],
    not_comparable={label(name): reasons for name, reasons in runs.not_comparable.items()},
  )


def with_label(run: RecordedRun, label: str) -> RecordedRun:
  """The run with its variant renamed to a label; `folder_variant` stays the name of its folder."""
  return dataclasses.replace(run, result={**run.result, 'variant': label, 'folder_variant': run.folder_variant})


def relabel_experiment(experiment: Experiment, labels: Mapping[str, str]) -> Experiment:
  """The experiment with its variants renamed to their labels."""
  variants = {labels.get(name, name): changes for name, changes in experiment.variants.items()}
  return dataclasses.replace(experiment, variants=variants)


def relabel_tuning(tuning: Tuning, labels: Mapping[str, str]) -> Tuning:
  """The tuning with its variants renamed to their labels."""
  points = tuple(
    dataclasses.replace(point, variant=labels.get(point.variant, point.variant)) for point in tuning.points
  )
  declared = {labels.get(name, name): changes for name, changes in tuning.about['variants'].items()}
  return dataclasses.replace(tuning, points=points, about={**tuning.about, 'variants': declared})
