"""The console of all commands, and how they report errors."""

import errno
import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from lab.cli import command_line
from training.config import ConfigError

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def printed(monkeypatch):
  """Prints to an output with a given encoding, and returns what was printed."""

  def to(encoding: str, *things) -> str:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(raw, encoding))
    console = command_line.new_console()
    for thing in things:
      console.print(thing)
    sys.stdout.flush()
    return raw.getvalue().decode(encoding)

  return to


def test_characters_that_cannot_be_encoded_are_replaced(printed):
  assert printed('ascii', '0.5 ±0.1', '█▌', 'é', 'a\udcff') == '0.5 +-0.1\n# \n\\xe9\na\\udcff\n'
  assert printed('latin-1', '0.5 ±0.1 →') == '0.5 ±0.1 ->\n'
  assert printed('utf8', '0.5 ±0.1 █▌', 'a\udcff') == '0.5 ±0.1 █▌\na\\udcff\n'


def test_names_are_not_interpreted_as_markup(printed):
  names = ['z[/b]', '[red]x', ':smile:', '[link=http://x]', 'a[0]']
  table = Table(*names, title=names[0])
  table.add_row(*names)
  text = printed('utf8', *names, table)
  for name in names:
    assert text.count(name) >= 3


@pytest.mark.parametrize(('columns', 'width'), [('0', 100), ('1', 100), ('20', 20), ('132', 132)])
def test_a_terminal_without_a_plausible_width_gets_the_default_width(columns, width, monkeypatch):
  monkeypatch.setenv('COLUMNS', columns)
  monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(io.BytesIO(), 'utf8'))
  monkeypatch.setattr(sys.stdout, 'isatty', lambda: True, raising=False)
  assert command_line.new_console().width == width


@pytest.mark.parametrize(
  ('error', 'code', 'message'),
  [
    (OSError(errno.ENOSPC, 'No space left on device', '/x/gradients.csv'), 1, '/x/gradients.csv could not be written'),
    (OSError(errno.EROFS, 'Read-only file system', '/x'), 1, 'Read-only file system'),
    (ConfigError('this is invalid'), 2, 'this is invalid'),
    (KeyboardInterrupt(), 130, 'stopped'),
  ],
)
def test_an_error_is_one_line_and_an_exit_code(monkeypatch, capsys, error, code, message):
  codes = []
  monkeypatch.setattr(command_line.app, 'run', lambda guarded, flags_parser: codes.append(guarded([])))
  for name in ('ignore_output_errors', 'enable_compilation_cache'):
    monkeypatch.setattr(command_line, name, lambda *arguments: None)
  monkeypatch.setattr(command_line.logging, 'set_verbosity', lambda level: None)

  def fails(console):
    raise error

  command_line.run_command('inspect_gradients', fails)
  printed = capsys.readouterr().err
  assert (codes, printed.count('\n')) == ([code], 1)
  assert printed.startswith('inspect_gradients: ')
  assert message in printed


def test_slow_packages_are_imported_only_where_needed():
  slow = ('grain', 'orbax.checkpoint', 'matplotlib.figure', 'pandas', 'submitit')
  program = f'import sys, train; print([name for name in {slow} if name in sys.modules])'
  answer = subprocess.run([sys.executable, '-c', program], cwd=PROJECT, capture_output=True, text=True, check=True)
  assert answer.stdout.strip() == '[]'
