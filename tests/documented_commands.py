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


def files_of(page: Path) -> dict[str, str]:
  """The Python files that a page shows: the code after a sentence that ends in 'this as `path`:'."""
  shown = re.findall(r'this as `([^`]+)`:\n\n```python\n(.*?)^```$', page.read_text('utf8'), re.MULTILINE | re.DOTALL)
  return dict(shown)


def write_documented_files(folder: Path) -> None:
  """Writes the Python files that the pages show to a folder."""
  for page in pages():
    for path, text in files_of(page).items():
      (folder / path).parent.mkdir(parents=True, exist_ok=True)
      (folder / path).write_text(text, 'utf8')
