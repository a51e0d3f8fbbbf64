"""Every number in docs/findings.md is recorded in the file that its section names."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / 'docs' / 'findings.md').read_text('utf8')
EXPECTED = PROJECT / 'experiments' / 'expected'
NUMBER = re.compile(r'(?<![\w.^])[+-]?\d+\.\d+(?:e-?\d+)?')
BY_SECTION, LAST = PAGE.split('\n## Reproductions at ')
SECTIONS = {part.partition('\n')[0]: part for part in re.split(r'^### ', BY_SECTION, flags=re.MULTILINE)[1:]}
ROWS = dict(re.findall(r'^\| `(\w+)` \| .* \| (.*) \|$', LAST, re.MULTILINE))


def numbers_in(value) -> Iterator[float]:
  """Every number of a JSON value."""
  if isinstance(value, (int, float)):
    yield float(value)
  elif isinstance(value, (list, dict)):
    for part in value.values() if isinstance(value, dict) else value:
      yield from numbers_in(part)


def recorded(path: Path) -> list[float]:
  text = path.read_text('utf8')
  if path.suffix == '.json':
    return list(numbers_in(json.loads(text)))
  return [float(number) for number in NUMBER.findall(text)]


def is_rounded_from(text: str, values: list[float]) -> bool:
  """Whether a number as printed is one of the values, rounded to its digits."""
  mantissa, _, power = text.partition('e')
  half = 0.5 * 10.0 ** (int(power or 0) - len(mantissa.partition('.')[2]))
  return any(abs(abs(float(text)) - abs(value)) <= 1.001 * half for value in values)


@pytest.mark.parametrize('title', SECTIONS)
def test_numbers_of_a_section_are_in_its_files(title):
  section = SECTIONS[title]
  files = [PROJECT / 'docs' / target for target in re.findall(r'\]\((\.\./[^)]+)\)', section)]
  assert files, 'names no file'
  values = [value for file in files for value in recorded(file)]
  wrong = [number for number in NUMBER.findall(section) if not is_rounded_from(number, values)]
  assert not wrong


@pytest.mark.parametrize('name', ROWS)
def test_measured_values_are_the_committed_ones(name):
  values = recorded(EXPECTED / f'{name}.json')
  assert [number for number in NUMBER.findall(ROWS[name]) if not is_rounded_from(number, values)] == []


def test_every_reproduction_is_listed():
  assert {path.stem for path in EXPECTED.glob('*.json')} == set(ROWS) | set(re.findall(r'--only=(\w+)', PAGE))


def test_verdicts_are_the_committed_ones():
  failed = BY_SECTION.split('\n## Claims that were not ')[1]
  verdicts = {path.stem: json.loads(path.read_text('utf8'))['verdict'] for path in EXPECTED.glob('*.json')}
  listed = set(re.findall(r'--only=(\w+)', failed))
  assert listed == {name for name, verdict in verdicts.items() if verdict != 'reproduced'}
