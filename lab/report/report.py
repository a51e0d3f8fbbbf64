"""The report of an experiment: the table in the terminal, and report.html with everything in one file."""

import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from lab.analysis import load_runs, results, wording
from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.summary import NOT_COMPARABLE, base_config, summarise
from lab.analysis.tuning_results import Tuning
from lab.cli.tables import new_table
from lab.core.experiment import Experiment
from lab.figures import experiment_figures, figure_style, labels
from lab.report import page, verdict_files
from training.files import write_atomically, write_json

WIDTH_WITH_SIZES = 76  # a terminal of at least this width has a column with parameters and FLOPs


def write(
  experiment: Experiment,
  directory: str | os.PathLike,
  command: str,
  tuning: Tuning | None = None,
  names: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], list[Path]]:
  """Writes tables, summary.json, figures and report.html, only from the files of an experiment's finished runs.

  Args:
    experiment: the declared experiment; its variants are the ones that are shown.
    directory: <workdir>/<experiment>, which contains the runs; the report is written to it.
    command: reproduces the report; the page shows it.
    tuning: the tuning of the experiment, which has a figure; None if there is none.
    names: labels by variant, for those that have one.

  Returns:
    The summary, and the files that were written, report.html last.

  Raises:
    ConfigError: if the directory has no run of the declared variants; the message has the command that trains them.
  """
  names = names or {}
  runs = labels.relabel(load_runs.load(experiment, directory), names)
  return write_from_runs(runs, Path(directory), command, tuning and labels.relabel_tuning(tuning, names))


def read_summary(
  experiment: Experiment,
  directory: Path,
  command: str,
  tuning: Tuning | None = None,
  names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
  """The summary that `write` returns, without writing any file."""
  runs = labels.relabel(load_runs.load(experiment, directory), names or {})
  return {**summarise(runs, tuning and labels.relabel_tuning(tuning, names or {})), 'command': command}


def write_from_runs(
  runs: ExperimentRuns, directory: Path, command: str, tuning: Tuning | None = None
) -> tuple[dict[str, Any], list[Path]]:
  """Does the same as `write`, for runs that have been read."""
  summary = {**summarise(runs, tuning), 'command': command}
  paths = [
    results.write_csv(results.as_table(runs.records), directory / 'results.csv'),
    write_json(directory / 'summary.json', summary),
    *verdict_files.write_all(summary, directory),
  ]
  shown = []
  for picture in experiment_figures.draw_all(runs, summary, tuning):
    files = figure_style.save(picture.figure, directory / 'figures', picture.name) if picture.figure else []
    shown.append({'title': picture.title, 'caption': picture.caption, 'image': page.embed(files[-1]) if files else ''})
    paths += files
  _remove_figures(directory / 'figures', set(experiment_figures.NAMES) - {path.stem for path in paths})
  text = page.render(
    'report.html.j2', summary=summary, figures=shown, sections=_sections(base_config(runs)), wording=wording,
    format_learned=format_learned, format_mean=format_mean, format_loss=format_loss, has_verdict=has_verdict,
  )  # fmt: skip
  return summary, [*paths, write_atomically(directory / 'report.html', text)]


def _remove_figures(folder: Path, names: Iterable[str]) -> None:
  """Removes figures of an earlier report that this one does not draw."""
  for name, suffix in itertools.product(names, figure_style.FORMATS):
    (folder / f'{name}.{suffix}').unlink(missing_ok=True)


def verdict_table(summary: Mapping[str, Any], width: int = 100) -> Table:
  """The summary as a table for the terminal, with a sentence for each variant below it.

  Args:
    summary: from `write`, or read from summary.json.
    width: the terminal's width in columns. A narrow table omits parameters and FLOPs; text is folded, never cut.
  """
  unit = summary['measure']['unit']
  title = Text(f'{summary["experiment"]}: {summary["question"]}', style='bold')
  view = new_table(title, caption=_below(summary))
  view.add_column('variant', overflow='fold')
  view.add_column('learned', justify='right', max_width=10, overflow='fold')
  split = ' (test)' if summary['measure']['split'] == 'test' else ''
  view.add_column(f'{unit}{split}:\nmean, each seed', overflow='fold')
  view.add_column('minus baseline\n[95% interval]', overflow='fold')
  if width >= WIDTH_WITH_SIZES:
    view.add_column('parameters,\nFLOPs a token', justify='right', overflow='fold')
  view.add_column('verdict', overflow='fold')
  for name, entry in summary['variants'].items():
    comparison = entry['comparison']
    cells = (
      wording.wrap_name(name) + _rate(entry, summary),
      '\n'.join([format_learned(entry), *wording.describe_failures(entry['runs'])]),
      f'{format_mean(entry)}\n{" ".join(format_loss(value, 2) for value in entry["seeds"].values())}',
      _difference(comparison),
      *([f'{wording.format_count(entry["parameters"])}\n{_flops(entry)}'] if width >= WIDTH_WITH_SIZES else []),
      entry['verdict'],
    )
    view.add_row(*(Text(cell) for cell in cells))
  return view


def has_verdict(entry: Mapping[str, Any]) -> bool:
  """Whether an entry has a verdict, rather than being the baseline or having nothing to compare with."""
  return bool(entry['comparison'] or entry['not_comparable'] or entry['verdict'] == NOT_COMPARABLE)


def format_learned(entry: Mapping[str, Any]) -> str:
  """The number of a variant's runs that learned, out of all: 4/5."""
  runs = entry['runs']
  return f'{runs["completed"]}/{runs["completed"] + runs["failed_to_learn"] + runs["diverged"]}'


def format_loss(value: float | None, digits: int = 3) -> str:
  """A loss; x for a run that diverged."""
  return 'x' if value is None else f'{value:.{digits}f}'


def format_mean(entry: Mapping[str, Any]) -> str:
  """The mean loss of a variant; a dash if its runs are not pooled."""
  return format_loss(entry['mean']) if entry['pooled'] else '-'


def _rate(entry: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
  """A line with the learning rate of a variant, for the table of an experiment at tuned rates; otherwise empty."""
  return (
    f'\nat {wording.format_compact(entry["learning_rate"])}' if summary['tuning'] and entry['learning_rate'] else ''
  )


def _below(summary: Mapping[str, Any]) -> str:
  """The lines under the table: verdicts and their conditions, notes, and what the intervals cover."""
  lines = [f'{name}: {entry["sentence"]}' for name, entry in summary['variants'].items() if has_verdict(entry)]
  if summary['tuning']:
    lines.append(f'tuning: {summary["tuning"]["sentence"]}')
  lines += [f'note: {note}' for note in summary['notes']]
  if any(entry['runs']['diverged'] for entry in summary['variants'].values()):
    lines.append('x: a run that diverged; excluded from the mean')
  covers = summary['interval']
  if covers['covers']:
    lines.append(f'intervals cover {covers["covers"]}; they do not cover {covers["does_not_cover"]}')
  elif any(entry['pooled'] for entry in summary['variants'].values()):
    lines.append('one seed gives neither an interval nor a verdict')
  return '\n'.join(lines)


def _difference(comparison: Mapping[str, Any] | None) -> str:
  if not comparison or comparison['difference'] is None:
    return '-'
  lines = [wording.format_difference(comparison['difference'])]
  if comparison['low'] is not None:
    lines.append(wording.format_interval(comparison['low'], comparison['high']))
  return '\n'.join(lines)


def _flops(entry: Mapping[str, Any]) -> str:
  flops = wording.format_count(entry['flops_per_token'])
  return f'{flops}\nx{entry["flops_per_token_ratio"]:.3f}' if 'flops_per_token_ratio' in entry else flops


def _sections(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """A flat config by section: {'model': {'num_layers': 12, ...}, ...}."""
  grouped = itertools.groupby(config.items(), key=lambda item: item[0].partition('.')[0])
  return {section: {path.partition('.')[2]: value for path, value in items} for section, items in grouped}
