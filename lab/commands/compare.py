"""One report over finished runs of any experiments and work directories: --compare=runs/block/relu,runs/custom/mine."""

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


class Group(NamedTuple):
  """The runs that are compared as one variant: where they are."""

  workdir: str
  experiment: str
  variant: str


def compare(
  given: Sequence[str], workdir: Path, name: str, labelled: Sequence[str], command: str
) -> tuple[dict[str, Any], list[Path]]:
  """Writes the report of what is in the given directories, into <workdir>/compare/<name>; trains nothing.

  Args:
    given: work directories, or directories of experiments, variants or runs. Their first variant is the baseline.
    workdir: where the report goes.
    name: of its folder; empty: made of what is compared.
    labelled: see `labels.parse_labels`.
    command: makes it all again.

  Returns:
    See `report.write`.

  Raises:
    ConfigError: if a directory has no finished run, or a label cannot be.
  """
  given = list(dict.fromkeys(os.path.normpath(directory.strip()) for directory in given if directory.strip()))
  if not given:
    raise ConfigError('--compare: name the directories, as in --compare=runs/block/baseline,runs/custom/mine')
  name = name or comparison_name(given)
  names.check_experiment_name(name)
  runs = load(given, name)
  runs = labels.relabel(runs, labels.parse_labels(labelled, runs.experiment.variants))
  directory = workdir / FOLDER / name
  with locked(directory / 'lock', REPORT_WITHIN):
    for folder in (directory, directory / 'figures'):
      clear_unfinished(folder)
    return report.write_report(runs, directory, command)


def load(given: Sequence[str], name: str) -> ExperimentRuns:
  """The runs in the directories, each group of them under a name of its own; errors as `compare`."""
  groups: dict[Group, list[dict[str, Any]]] = {}
  notes: list[str] = []
  reached: set[str] = set()
  for directory in given:
    found = results.find_runs(directory)
    notes += [f'{directory}: {line}' for line in found.left_out]
    for record in sorted(found.records, key=_declared_order):
      if (real := os.path.realpath(record['directory'])) not in reached:
        reached.add(real)
        groups.setdefault(_group(record), []).append(record)
  shown = dict(zip(groups, distinct_names(list(groups)), strict=True))
  runs: list[RecordedRun] = []
  for group, records in groups.items():
    own = [run for record in records if (run := load_runs.read_run(record, notes))]
    whole, said = load_runs.drop_duplicate_seeds(own)
    runs += [labels.with_label(run, shown[group]) for run in whole]
    notes += said
  if not runs:
    raise ConfigError(f'--compare: there is no whole run: {notes[-1]}')
  variants: Mapping[str, Any] = {shown[group]: {} for group in groups}
  experiment = Experiment(QUESTION, variants, name=name, seeds=tuple(sorted({run.seed for run in runs})))
  every = [{**record, 'variant': shown[group]} for group, records in groups.items() for record in records]
  notes = [*load_runs.describe_missing(experiment, every), *notes]
  baselines = Path(every[0]['directory']).parents[1]
  compared = load_runs.assemble(experiment, baselines, runs, every, notes, declared=False)
  names_kept = [group.variant for group, records in groups.items() for _ in records]
  records = [
    {**record, 'variant': kept, 'label': record['variant']}
    for kept, record in zip(names_kept, compared.records, strict=True)
  ]
  return dataclasses.replace(compared, records=records)


def distinct_names(groups: Sequence[Group]) -> list[str]:
  """The shortest names that tell the groups apart: relu, or block/relu, or a/relu, or a/block/relu."""
  common = os.path.commonpath([group.workdir for group in groups])
  places = [os.path.relpath(group.workdir, common) for group in groups]
  places = [os.path.basename(common) if place == '.' else place for place in places]
  schemes = (
    [group.variant for group in groups],
    [f'{group.experiment}/{group.variant}' for group in groups],
    [f'{place}/{group.variant}' for place, group in zip(places, groups, strict=True)],
    [f'{place}/{group.experiment}/{group.variant}' for place, group in zip(places, groups, strict=True)],
  )
  return next((scheme for scheme in schemes if len(set(scheme)) == len(scheme)), schemes[-1])


def comparison_name(given: Sequence[str]) -> str:
  """A name for a comparison: block-baseline+custom-mine; of a long one the beginning, and a checksum."""
  parts = ['-'.join(Path(directory).parts[-2:]) for directory in given]
  name = '+'.join(re.sub(r'[^A-Za-z0-9_.=+-]+', '-', part).strip('-.') for part in parts).strip('+-.')
  if len(name) <= names.SHORTENED_LENGTH and len(set(parts)) == len(parts) and names.SAFE_NAME.fullmatch(name):
    return name
  return f'{name[: names.SHORTENED_LENGTH].lstrip("=") or FOLDER}-{names.checksum(repr(given))}'


def _group(record: Mapping[str, Any]) -> Group:
  """Where a run is, by the names that its folders have now: a copy, or a run moved aside, is in a group of its own."""
  above, folder = Path(os.path.abspath(record['directory'])).parts[:-1], os.path.basename(record['directory'])
  own = [] if folder == f'seed_{record["seed"]}' else [folder]
  end = max(1, len(above) - len(Path(record['variant']).parts))  # of a run of a tuning two folders
  begin = max(1, end - len(Path(record['experiment']).parts))
  return Group(str(Path(*above[:begin])), '/'.join(above[begin:end]), '/'.join([*above[end:], *own]))


def _declared_order(record: Mapping[str, Any]) -> tuple[Any, ...]:
  """Experiments by name, their variants as declared where it is known how, and their seeds."""
  name, variant = record['experiment'], record['variant']
  declared = list(registry.find_experiment(name).variants) if name in registry.experiment_names() else []
  return name, declared.index(variant) if variant in declared else len(declared), variant, record['seed']
