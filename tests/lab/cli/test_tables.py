"""The style of the tables that commands print."""

import io
import re
from pathlib import Path

from rich.console import Console

from lab.cli.tables import new_table

PROJECT = Path(__file__).parents[3]


def printed(table, width: int = 30) -> list[str]:
  file = io.StringIO()
  Console(file=file, width=width).print(table)
  return [line.rstrip() for line in file.getvalue().splitlines()]


def test_text_is_aligned_left_and_numbers_right_and_markup_is_printed_literally():
  table = new_table('[b]title', ('run', 'loss'), caption='[i]caption')
  table.add_row('a', '2.5')
  assert printed(table) == ['[b]title', '', ' run   loss', ' ──────────', ' a      2.5', '', '[i]caption']


def test_a_folded_name_keeps_its_last_letters():
  table = new_table(columns=('variant', 'seeds'), fold=True)
  table.add_row('x' * 30 + 'end', '5')
  assert ''.join(printed(table, 20)).replace(' ', '').endswith('end')


def test_all_commands_use_the_common_table_style():
  modules = [path for path in (PROJECT / 'lab').rglob('*.py') if path.name not in ('tables.py', 'progress.py')]
  assert [path.name for path in modules if re.search(r'(?<!\w)Table\(|import box', path.read_text('utf8'))] == []
