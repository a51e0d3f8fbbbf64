"""The tables of docs/reproduce.md show the claims and verdicts that are declared and committed."""

import json
import re
from pathlib import Path

import pytest

from lab.core import registry

PROJECT = Path(__file__).parents[2]
TABLES = re.findall(r'^```\n( reproduction .*?)^```', (PROJECT / 'docs/reproduce.md').read_text('utf8'), re.M | re.S)


def rows() -> dict[str, tuple[str, str]]:
  """The claim and the verdict of each reproduction, from the lines of its row."""
  found: dict[str, tuple[list[str], list[str]]] = {}
  row: tuple[list[str], list[str]] = [], []
  for table in TABLES:
    header, _, *lines = table.splitlines()
    claim, verdict = header.index('claim'), header.index('verdict')
    for line in lines:
      name = line[:claim].strip()
      row = found.setdefault(name, ([], [])) if name else row
      row[0].append(line[claim:verdict].strip())
      row[1].append(re.split(r'  ', line[verdict:])[0].strip())
  return {name: (' '.join(claim).strip(), verdict[0]) for name, (claim, verdict) in found.items()}


ROWS = rows()


def test_every_reproduction_has_a_row():
  assert set(ROWS) == set(registry.reproduction_names())


@pytest.mark.parametrize('name', ROWS)
def test_claim_and_verdict(name):
  expected = json.loads((PROJECT / 'experiments' / 'expected' / f'{name}.json').read_text('utf8'))
  assert ROWS[name] == (registry.find_reproduction(name).claim, expected['verdict'])
