"""--compare=runs/block/relu,runs/custom/mine: one report on finished runs of any experiments and work directories."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.analysis import load_runs, results
from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import RecordedRun
from lab.core import names, registry
from lab.core.experiment import Experiment
from lab.figures import labels
from lab.report import report
from training.config import ConfigError
from training.files import clear_unfinished
from training.run_files.locks import REPORT_WITHIN, locked

FOLDER = 'compare'
QUESTION = 'How do these runs compare?'


class RunGroup(NamedTuple):
  """The location of the runs that are compared as one variant."""

  workdir: str
  experiment: str
  variant: str


def write_comparison(
  directories: Sequence[str], workdir: Path, name: str, label_flags: Sequence[str], command: str
) -> tuple[dict[str, Any], list[Path]]:
  """Writes the report of the finished runs in several directories to <workdir>/compare/<name>; trains nothing.

  Args:
    directories: work directories, or directories of experiments, variants or runs; the first variant in them is the
      baseline.
    workdir: where the report is written.
    name: the name of its folder; if empty, derived from the directories.
    label_flags: see `labels.parse_labels`.
    command: reproduces the report.

  Returns:
    See `report.write`.

  Raises:
    ConfigError: if a directory has no finished run, or a label is invalid.
  """
  directories = list(dict.fromkeys(os.path.normpath(path.strip()) for path in directories if path.strip()))
  if not directories:
    raise ConfigError('--compare: list the directories, as in --compare=runs/block/baseline,runs/custom/mine')
  name = name or comparison_name(directories)
  names.check_experiment_name(name)
  runs = load(directories, name)
  runs = labels.relabel(runs, labels.parse_labels(label_flags, runs.experiment.variants))
  folder = workdir / FOLDER / name
  with locked(folder / 'lock', REPORT_WITHIN):
    clear_unfinished(folder)
    clear_unfinished(folder / 'figures')
    return report.write_from_runs(runs, folder, command)


def load(directories: Sequence[str], name: str) -> ExperimentRuns:
  """Loads the runs in the directories as one experiment, each group as a variant; raises as `write_comparison`."""
  groups: dict[RunGroup, list[dict[str, Any]]] = {}
  notes: list[str] = []
  reached: set[str] = set()
  for directory in directories:
    found = results.find_finished_runs(directory)
    notes += [f'{directory}: {line}' for line in found.left_out]
    for record in sorted(found.records, key=_declared_order):
      if (real := os.path.realpath(record['directory'])) not in reached:
        reached.add(real)
        groups.setdefault(_group(record), []).append(record)
  variant_of = dict(zip(groups, distinct_names(list(groups)), strict=True))
  runs: list[RecordedRun] = []
  for group, records in groups.items():
    own = [run for record in records if (run := load_runs.read_run(record, notes))]
    distinct, duplicates = load_runs.drop_duplicate_seeds(own)
    runs += [labels.with_label(run, variant_of[group]) for run in distinct]
    notes += duplicates
  if not runs:
    raise ConfigError(f'--compare: there is no complete run: {notes[-1]}')
  variants: Mapping[str, Any] = {variant_of[group]: {} for group in groups}
  experiment = Experiment(QUESTION, variants, name=name, seeds=tuple(sorted({run.seed for run in runs})))
  renamed = [{**record, 'variant': variant_of[group]} for group, records in groups.items() for record in records]
  notes = [*load_runs.describe_missing(experiment, renamed), *notes]
  baseline_directory = Path(renamed[0]['directory']).parents[1]
  compared = load_runs.assemble(experiment, baseline_directory, runs, renamed, notes, declared=False)
  folder_variants = [group.variant for group, records in groups.items() for _ in records]
  records = [
    {**record, 'variant': variant, 'label': record['variant']}
    for variant, record in zip(folder_variants, compared.records, strict=True)
  ]
  return dataclasses.replace(compared, records=records)


def distinct_names(groups: Sequence[RunGroup]) -> list[str]:
  """The shortest names that distinguish the groups: relu, or block/relu, or a/relu, or a/block/relu."""
  common = os.path.commonpath([group.workdir for group in groups])
  workdirs = [os.path.relpath(group.workdir, common) for group in groups]
  workdirs = [os.path.basename(common) if path == '.' else path for path in workdirs]
  schemes = (
    [group.variant for group in groups],
    [f'{group.experiment}/{group.variant}' for group in groups],
    [f'{path}/{group.variant}' for path, group in zip(workdirs, groups, strict=True)],
    [f'{path}/{group.experiment}/{group.variant}' for path, group in zip(workdirs, groups, strict=True)],
  )
  return next((scheme for scheme in schemes if len(set(scheme)) == len(scheme)), schemes[-1])


def comparison_name(directories: Sequence[str]) -> str:
  """A name for a comparison: block-baseline+custom-mine; a long name is truncated and ends with a checksum."""
  parts = ['-'.join(Path(directory).parts[-2:]) for directory in directories]
  name = '+'.join(re.sub(r'[^A-Za-z0-9_.=+-]+', '-', part).strip('-.') for part in parts).strip('+-.')
  if len(name) <= names.SHORTENED_LENGTH and len(set(parts)) == len(parts) and names.SAFE_NAME.fullmatch(name):
    return name
  return f'{name[: names.SHORTENED_LENGTH].lstrip("=") or FOLDER}-{names.checksum(repr(directories))}'


def _group(record: Mapping[str, Any]) -> RunGroup:
  """The group of a run, by the current names of its folders: a copy or a renamed run has a separate group."""
  above, folder = Path(os.path.abspath(record['directory'])).parts[:-1], os.path.basename(record['directory'])
  own = [] if folder == f'seed_{record["seed"]}' else [folder]
  end = max(1, len(above) - len(Path(record['variant']).parts))  # the variant of a tuning run has two parts
  begin = max(1, end - len(Path(record['experiment']).parts))
  return RunGroup(str(Path(*above[:begin])), '/'.join(above[begin:end]), '/'.join([*above[end:], *own]))


def _declared_order(record: Mapping[str, Any]) -> tuple[Any, ...]:
  """A sort key: experiments by name, their variants in declared order if known, then seeds."""
  name, variant = record['experiment'], record['variant']
  declared = list(registry.find_experiment(name).variants) if name in registry.experiment_names() else []
  return name, declared.index(variant) if variant in declared else len(declared), variant, record['seed']
