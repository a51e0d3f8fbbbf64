"""verdicts.csv, .md and .tex contain the numbers of the summary in formats that other programs read."""

import json
import re

import fake_runs
import pandas as pd
import pytest

from lab.core.experiment import Experiment
from lab.report import report

pytestmark = pytest.mark.usefixtures('svg_only')

ODD = {'post_norm': 'a_b & 100% [x] {y} #1 ~ ^ <z> | "q"', 'relu': '*starred'}


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  directory = tmp_path_factory.mktemp('runs') / 'block'
  statuses = {('relu', 1): 'diverged'}
  fake_runs.write_experiment(directory, statuses=statuses, points=2, inspect=False)
  report.write(fake_runs.BLOCK, directory, 'python train.py', None, ODD)
  return directory, json.loads((directory / 'summary.json').read_text())


def test_csv_has_every_number_in_full_precision(written):
  directory, summary = written
  frame = pd.read_csv(directory / 'verdicts.csv').set_index('variant')
  assert frame.index.tolist() == list(summary['variants'])
  for label, entry in summary['variants'].items():
    row, comparison = frame.loc[label], entry['comparison'] or {}
    for name in ('n', 'difference', 'low', 'high', 'p', 'p_holm'):
      assert (None if pd.isna(row[name]) else row[name]) == comparison.get(name)
    assert (row['mean'], row['mean_low'], row['learning_rate']) == (entry['mean'], entry['low'], entry['learning_rate'])
    assert (row['verdict'], row['learned'], row['runs']) == (entry['verdict'], entry['runs']['completed'], 5)
  assert frame.loc['baseline', 'unit'] == 'bits per byte'


def test_markdown_is_one_table_with_escaped_cells(written):
  directory, summary = written
  lines = (directory / 'verdicts.md').read_text().split('\n\n')[0].splitlines()
  cells = [re.split(r'(?<!\\)\|', line)[1:-1] for line in lines]
  assert len(cells) == 2 + len(summary['variants'])
  assert {len(row) for row in cells} == {8}
  assert set(''.join(cells[1])) <= set('-: ')
  assert r'\<z\>' in lines[3]
  assert f'{summary["variants"]["no_residual"]["mean"]:.3f}' in lines[-1]


def test_latex_is_a_tabular_with_escaped_cells(written):
  directory, summary = written
  text = (directory / 'verdicts.tex').read_text()
  body = [line for line in text.splitlines() if not line.startswith('%')]
  assert body[0] == r'\begin{tabular}{lrrrrrrl}'
  assert body[-1] == r'\end{tabular}'
  assert text.isascii()
  rows = [line for line in body[1:-1] if line != r'\hline']
  assert len(rows) == 1 + len(summary['variants'])
  for row in rows:
    assert row.endswith(r' \\')
    plain = row.removesuffix(r' \\')
    commands = re.findall(r'\\[a-zA-Z]+(?:\{\})?', plain)
    assert set(commands) <= {
      r'\textasciitilde{}', r'\textasciicircum{}', r'\textless{}', r'\textgreater{}', r'\textbar{}',
    }  # fmt: skip
    rest = re.sub(r'\\[&%#_{}$]|\$-\$|\\[a-zA-Z]+\{\}', '', plain).replace('{}*', '*')
    assert rest.count('&') == 7
    assert not set(rest) & set('\\$%#_{}~^<>|"')
    assert not plain.startswith(('*', '['))
  assert r'a\_b \& 100\% [x] \{y\} \#1' in text
  assert '$-$0.' in text


def test_a_variant_that_is_not_comparable_has_no_numbers(tmp_path):
  experiment = Experiment('?', {'baseline': {}, 'other': {'model.norm': 'layer'}}, name='x', seeds=(0, 1))
  fake_runs.write_experiment(tmp_path, experiment, {'baseline': 2.9}, points=2)
  fake_runs.write_experiment(tmp_path, experiment, {'other': 2.8}, changes={'run.steps': 30}, points=2)
  report.write(experiment, tmp_path, 'python train.py')
  row = pd.read_csv(tmp_path / 'verdicts.csv').set_index('variant').loc['other']
  assert row['verdict'] == 'not comparable'
  assert row[['mean', 'mean_low', 'difference', 'low', 'p', 'n']].isna().all()
  assert row['sentence'] == 'not comparable: run.steps is 30 (baseline 300)'
  last = (tmp_path / 'verdicts.md').read_text().split('\n\n')[0].splitlines()[-1]
  assert last == '| other | 2/2 |  |  |  |  | 4e-3 | not comparable |'
