"""How tables of numbers look in a terminal."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text


def new_table(title: str, columns: Sequence[str] = (), left: int = 1, caption: str | None = None) -> Table:
  """An empty table; the first columns are words, the others numbers."""
  table = Table(
    title=Text(title), caption=None if caption is None else Text(caption), title_justify='left',
    caption_justify='left', box=box.SIMPLE_HEAD, pad_edge=False,
  )  # fmt: skip
  for number, column in enumerate(columns):
    table.add_column(column, justify='left' if number < left else 'right', no_wrap=number < left)
  return table
