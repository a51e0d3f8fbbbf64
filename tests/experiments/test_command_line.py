"""What all commands do alike."""

import io
import sys

import pytest
from rich.table import Table

from experiments import command_line


@pytest.fixture
def printed(monkeypatch):
  """Prints to an output of an encoding, and gives what arrived there."""

  def to(encoding: str, *things) -> str:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(raw, encoding))
    console = command_line.new_console()
    for thing in things:
      console.print(thing)
    sys.stdout.flush()
    return raw.getvalue().decode(encoding)

  return to


def test_an_output_that_lacks_a_character_gets_its_spelling(printed):
  assert printed('ascii', '0.5 ±0.1', '█▌', 'é', 'a\udcff') == '0.5 +-0.1\n# \n\\xe9\na\\udcff\n'
  assert printed('latin-1', '0.5 ±0.1 →') == '0.5 ±0.1 ->\n'
  assert printed('utf8', '0.5 ±0.1 █▌', 'a\udcff') == '0.5 ±0.1 █▌\na\\udcff\n'


def test_names_are_no_markup(printed):
  names = ['z[/b]', '[red]x', ':smile:', '[link=http://x]', 'a[0]']
  table = Table(*names, title=names[0])
  table.add_row(*names)
  text = printed('utf8', *names, table)
  for name in names:
    assert text.count(name) >= 3


@pytest.mark.parametrize(('columns', 'width'), [('0', 100), ('1', 100), ('20', 20), ('132', 132)])
def test_a_terminal_that_gives_no_width_has_everything_printed(columns, width, monkeypatch):
  monkeypatch.setenv('COLUMNS', columns)
  monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(io.BytesIO(), 'utf8'))
  monkeypatch.setattr(sys.stdout, 'isatty', lambda: True, raising=False)
  assert command_line.new_console().width == width
