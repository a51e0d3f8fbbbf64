"""What all commands do alike."""

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


@pytest.mark.parametrize(
  ('error', 'code', 'says'),
  [
    (OSError(errno.ENOSPC, 'No space left on device', '/x/gradients.csv'), 1, '/x/gradients.csv could not be written'),
    (OSError(errno.EROFS, 'Read-only file system', '/x'), 1, 'Read-only file system'),
    (ConfigError('this cannot be'), 2, 'this cannot be'),
    (KeyboardInterrupt(), 130, 'stopped'),
  ],
)
def test_what_ends_a_command_is_one_line(monkeypatch, capsys, error, code, says):
  codes = []
  monkeypatch.setattr(command_line.app, 'run', lambda guarded, flags_parser: codes.append(guarded([])))
  for name in ('outlive_readers', 'enable_compilation_cache'):
    monkeypatch.setattr(command_line, name, lambda *arguments: None)
  monkeypatch.setattr(command_line.logging, 'set_verbosity', lambda level: None)

  def fails(console):
    raise error

  command_line.run('inspect_gradients', fails)
  said = capsys.readouterr().err
  assert (codes, said.count('\n')) == ([code], 1)
  assert said.startswith('inspect_gradients: ')
  assert says in said


def test_what_only_some_commands_need_is_not_imported_by_all():
  slow = ('grain', 'orbax.checkpoint', 'matplotlib.figure', 'pandas', 'submitit')
  program = f'import sys, train; print([name for name in {slow} if name in sys.modules])'
  answer = subprocess.run([sys.executable, '-c', program], cwd=PROJECT, capture_output=True, text=True, check=True)
  assert answer.stdout.strip() == '[]'
