"""Writes the table of docs/designs.md: the equation, source and options of every residual design, from their classes.

Command: python -m docs.list_designs
"""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

from model.connections import CONNECTIONS

PAGE = Path(__file__).with_name('designs.md')
ROWS = re.compile('(?<=\\|---\\|---\\|---\\|\\n)(\\|.*\\n)*')  # of the table, after the line under its header


def page() -> str:
  """The text of docs/designs.md, with the rows of its table made anew."""
  rows = []
  for name, design in CONNECTIONS.items():
    first = (inspect.getdoc(design) or '').splitlines()[0].replace('|', '\\\\|')
    options = [f'`{field.name}={_format(field.default)}`' for field in dataclasses.fields(design.Options)]
    rows.append(f'| `{name}` | {first} | {", ".join(options)} |\n')
  return ROWS.sub(lambda _: ''.join(rows), PAGE.read_text('utf8'), count=1)


def _format(value: Any) -> str:
  return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == '__main__':
  PAGE.write_text(page(), 'utf8')
