"""The table of verdicts as files for other programs: verdicts.csv, verdicts.md and verdicts.tex."""

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.analysis import wording
from training.files import write_atomically

COLUMNS = (
  'variant', 'name', 'verdict', 'unit', 'split', 'n', 'learned', 'runs', 'mean', 'mean_low', 'mean_high', 'difference',
  'low', 'high', 'p', 'p_holm', 'learning_rate', 'learning_rate_tuned', 'parameters', 'flops_per_token', 'sentence',
)  # fmt: skip
_SPECIAL = {
  '\\': r'\textbackslash{}', '~': r'\textasciitilde{}', '^': r'\textasciicircum{}', '<': r'\textless{}',
  '>': r'\textgreater{}', '|': r'\textbar{}', '"': "''", '\u2013': '--', '\u00d7': r'$\times$',
  **{sign: f'\\{sign}' for sign in '&%$#_{}'},
}  # fmt: skip


def write_all(summary: Mapping[str, Any], directory: Path) -> list[Path]:
  """Writes verdicts.csv, verdicts.md and verdicts.tex from a summary into a directory."""
  contents = {'csv': as_csv(summary), 'md': as_markdown(summary), 'tex': as_latex(summary)}
  return [write_atomically(directory / f'verdicts.{suffix}', text) for suffix, text in contents.items()]


def rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
  """One row per variant, in the order of the summary; missing numbers are None.

  `variant` is the variant's label, `name` the name of its folder; `n` is the number of pairs of runs, and `difference`
  is variant minus baseline, with the 95% interval `low` to `high`.
  """
  measure = summary['measure']
  return [
    {
      'variant': label,
      'verdict': entry['verdict'],
      'unit': measure['unit'],
      'split': measure['split'],
      'learned': entry['runs']['completed'],
      'runs': sum(entry['runs'].values()),
      'mean_low': entry['low'],
      'mean_high': entry['high'],
      **{name: entry[name] for name in COLUMNS if name in entry and name not in ('low', 'high', 'runs')},
      **{name: (entry['comparison'] or {}).get(name) for name in ('n', 'difference', 'low', 'high', 'p', 'p_holm')},
    }
    for label, entry in summary['variants'].items()
  ]


def as_csv(summary: Mapping[str, Any]) -> str:
  """The columns COLUMNS in full precision."""
  text = io.StringIO()
  table = csv.DictWriter(text, COLUMNS, lineterminator='\n')
  table.writeheader()
  table.writerows(rows(summary))
  return text.getvalue()


def as_markdown(summary: Mapping[str, Any]) -> str:
  """A table, followed by the verdicts and their conditions."""
  head, *body = [[_markdown(cell) for cell in line] for line in (_head(summary), *_cells(summary))]
  lines = [head, ['---', *['---:'] * (len(head) - 2), '---'], *body]
  table = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
  return table + '\n\n' + '\n'.join(f'- {_markdown(text)}' for text in table_notes(summary)) + '\n'


def as_latex(summary: Mapping[str, Any]) -> str:
  """A tabular that needs no LaTeX package; the verdicts and their conditions are comments."""
  head, *body = [[_latex(cell) for cell in line] for line in (_head(summary), *_cells(summary))]
  lines = [f'% {" ".join(text.split())}' for text in (summary['question'], *table_notes(summary))]
  lines += [f'\\begin{{tabular}}{{l{"r" * (len(head) - 2)}l}}', r'\hline', ' & '.join(head) + r' \\', r'\hline']
  lines += [' & '.join(line) + r' \\' for line in body]
  return '\n'.join([*lines, r'\hline', r'\end{tabular}']) + '\n'


def table_notes(summary: Mapping[str, Any]) -> list[str]:
  """The lines that belong to the table: verdicts and their conditions, notes, what the intervals cover."""
  covers = summary['interval']
  lines = [f'{name}: {entry["sentence"]}' for name, entry in summary['variants'].items() if entry['sentence']]
  lines += [f'note: {note}' for note in summary['notes']]
  if covers['covers']:
    lines.append(f"95% intervals by Student's t cover {covers['covers']}; they do not cover {covers['does_not_cover']}")
  return lines


def _head(summary: Mapping[str, Any]) -> list[str]:
  measure = summary['measure']
  what = f'{measure["unit"]} ({measure["split"]})'
  return ['variant', 'learned', f'{what} [95%]', f'minus {summary["baseline"]} [95%]', 'n', 'p (Holm)',
          'learning rate', 'verdict']  # fmt: skip


def _cells(summary: Mapping[str, Any]) -> list[list[str]]:
  return [
    [
      row['variant'],
      f'{row["learned"]}/{row["runs"]}',
      _with_interval(row['mean'], row['mean_low'], row['mean_high'], ''),
      _with_interval(row['difference'], row['low'], row['high'], '+'),
      '' if row['n'] is None else str(row['n']),
      '' if row['p'] is None else f'{wording.format_p_value(row["p"])} ({wording.format_p_value(row["p_holm"])})',
      wording.format_compact(row['learning_rate']) if row['learning_rate'] else '',
      row['verdict'],
    ]
    for row in rows(summary)
  ]


def _with_interval(value: float | None, low: float | None, high: float | None, sign: str) -> str:
  if value is None:
    return ''
  shown = f'{value:{sign}.3f}'
  return shown if low is None or high is None else f'{shown} {wording.format_interval(low, high, sign or "-")}'


def _markdown(text: str) -> str:
  return re.sub(r'([\\`*_\[\]<>|#])', r'\\\1', ' '.join(text.split()))


def _latex(text: str) -> str:
  signed = re.sub(r'(?<![\w.])-(?=\d)', '\0', ' '.join(text.split()))  # a minus sign, not a hyphen
  escaped = ''.join(_SPECIAL.get(sign, sign) for sign in signed).replace('\0', '$-$')
  # After \\, LaTeX would read a leading [ or * as its argument.
  return f'{{}}{escaped}' if escaped.startswith(('[', '*')) else escaped
