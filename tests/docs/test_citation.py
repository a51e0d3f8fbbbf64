"""CITATION.cff has what its format requires, and the version and licence of the project."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2]
FIELDS = dict(re.findall(r'^([\w-]+): *(.*)$', (PROJECT / 'CITATION.cff').read_text('utf8'), re.MULTILINE))


def test_fields_required_by_the_schema():
  assert {'cff-version', 'message', 'title', 'authors'} <= set(FIELDS)
  assert FIELDS['cff-version'] == '1.2.0'


def test_version_and_licence_are_the_projects():
  assert FIELDS['version'] == tomllib.loads((PROJECT / 'pyproject.toml').read_text('utf8'))['project']['version']
  assert FIELDS['license'] == 'Apache-2.0'
  assert 'Apache License' in (PROJECT / 'LICENSE').read_text('utf8')
