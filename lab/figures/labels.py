"""Variants under other names in tables and figures: --labels='post_norm=Post-LN,baseline=Pre-Norm'."""

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
  """The label of each variant that has one.

  Args:
    given: as `post_norm=Post-LN`; a variant's name may have a = in it.
    variants: the names there are.

  Raises:
    ConfigError: for what cannot be read, an unknown variant, with the nearest one, or a name that two would have.
  """
  variants, labels = list(variants), {}
  for text in given:
    whose = max((name for name in variants if text.startswith(f'{name}=')), key=len, default=None)
    if whose is None:
      name, separator, _ = text.partition('=')
      if not separator:
        raise ConfigError(
          f'--labels: cannot read {text!r}; write variant=label, as in post_norm=Post-LN; quote '
          'one that has a comma in it, as in --labels=\'"post_norm=Post-LN, tuned"\''
        )
      check_names([name], variants, 'variant in --labels')
    label = text.removeprefix(f'{whose}=').strip()
    if not label or len(label) > LONGEST or not label.isprintable() or set('$\\') & set(label):
      raise ConfigError(f'--labels: {text!r}: a label has 1 to {LONGEST} printable characters, none of them $ or \\')
    if missing := missing_glyphs(label):
      raise ConfigError(f'--labels: {text!r}: the font of the figures has no {missing[0]!r}: write it otherwise')
    labels[str(whose)] = label
  shown = [labels.get(name, name) for name in variants]
  twice = next((label for label in shown if shown.count(label) > 1), None)
  if twice is not None:
    raise ConfigError(f'--labels: two variants would be called {twice!r}')
  return labels


def relabel(runs: ExperimentRuns, labels: Mapping[str, str]) -> ExperimentRuns:
  """The runs with their variants under other names; `records` keep the names that the folders have."""
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
  """The run as one of a variant of another name; `named` is the one that its folder has."""
  return dataclasses.replace(run, result={**run.result, 'variant': label, 'folder_variant': run.folder_variant})


def relabel_experiment(experiment: Experiment, labels: Mapping[str, str]) -> Experiment:
  """The declaration with its variants under other names."""
  variants = {labels.get(name, name): changes for name, changes in experiment.variants.items()}
  return dataclasses.replace(experiment, variants=variants)


def relabel_tuning(tuning: Tuning, labels: Mapping[str, str]) -> Tuning:
  """A tuning with its variants under other names."""
  points = tuple(
    dataclasses.replace(point, variant=labels.get(point.variant, point.variant)) for point in tuning.points
  )
  declared = {labels.get(name, name): changes for name, changes in tuning.about['variants'].items()}
  return dataclasses.replace(tuning, points=points, about={**tuning.about, 'variants': declared})
