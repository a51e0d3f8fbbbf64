"""The notebook docs/tour.ipynb is valid, holds no outputs, and runs."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from documented_names import resolves

PROJECT = Path(__file__).parents[2]
NOTEBOOK = json.loads((PROJECT / 'docs' / 'tour.ipynb').read_text('utf8'))
CODE = [''.join(cell['source']) for cell in NOTEBOOK['cells'] if cell['cell_type'] == 'code']
KEYS = {  # of the cells, in version 4.4 of the notebook format
  'markdown': {'cell_type', 'metadata', 'source'},
  'code': {'cell_type', 'metadata', 'source', 'execution_count', 'outputs'},
}


def test_it_is_a_notebook_of_version_4():
  assert (NOTEBOOK['nbformat'], NOTEBOOK['nbformat_minor']) == (4, 4)
  assert set(NOTEBOOK) == {'cells', 'metadata', 'nbformat', 'nbformat_minor'}
  for cell in NOTEBOOK['cells']:
    assert set(cell) == KEYS[cell['cell_type']]
    assert all(isinstance(line, str) for line in cell['source'])


def test_outputs_are_stripped():
  cells = [cell for cell in NOTEBOOK['cells'] if cell['cell_type'] == 'code']
  assert all((cell['outputs'], cell['execution_count']) == ([], None) for cell in cells)


def test_it_has_ten_cells_of_code():
  assert len(CODE) == 10


def test_what_it_imports_exists():
  """Names that are renamed are found here; the slow test below runs the cells."""
  for node in ast.walk(ast.parse('\n'.join(CODE))):
    if isinstance(node, ast.ImportFrom):
      names = [f'{node.module}.{alias.name}' for alias in node.names]
      assert [name for name in names if not resolves(name)] == []


@pytest.mark.slow
def test_every_cell_runs(tmp_path):
  environment = {**os.environ, 'MPLBACKEND': 'Agg', 'TMPDIR': str(tmp_path)}
  run = subprocess.run(
    [sys.executable, '-c', '\n'.join(CODE)], cwd=PROJECT / 'docs', env=environment, capture_output=True, text=True
  )
  assert run.returncode == 0, run.stderr
  assert 'completed' in run.stdout
  assert 'compared with the baseline' in run.stdout
  assert len(list(tmp_path.glob('*/tour/*/seed_0/result.json'))) == 2
