"""The commands in the README and in docs/."""

import re
from pathlib import Path

PROJECT = Path(__file__).parent.parent


def pages() -> list[Path]:
  return sorted([*PROJECT.glob('*.md'), *(PROJECT / 'docs').glob('*.md')])


def commands_of(script: str) -> list[str]:
  """Returns the command lines of a script, `train` or another, without `python`."""
  text = '\n'.join(page.read_text('utf8') for page in pages())
  return sorted(set(re.findall(rf'^python ({script}\.py.*)$', text, re.MULTILINE)))
