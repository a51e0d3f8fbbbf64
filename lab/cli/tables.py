"""The common style of all tables in the terminal."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text


def new_table(
  title: str | Text | None = None,
  columns: Sequence[str] = (),
  left: int = 1,
  caption: str | None = None,
  fold: bool = False,
) -> Table:
  """An empty table; columns that need other options are added with `add_column`.

  Args:
    title: printed above the table; text, not markup.
    columns: their headings.
    left: the number of columns that hold text, aligned left; those after them hold numbers, aligned right.
    caption: printed below the table; text, not markup.
    fold: whether text that is too long for its column continues on the next line; otherwise its column is as wide as
      its longest cell.
  """
  table = Table(
    title=Text(title) if isinstance(title, str) else title,
    title_justify='left',
    caption=None if caption is None else Text(caption),
    caption_justify='left',
    box=box.SIMPLE_HEAD,
    pad_edge=False,
  )
  for number, column in enumerate(columns):
    is_text = number < left
    table.add_column(
      column,
      justify='left' if is_text else 'right',
      no_wrap=is_text and not fold,
      overflow='fold' if fold else 'ellipsis',
    )
  return table
