"""Commands continue when stdout or stderr is closed or full, and exit cleanly on signals while they start."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
PROGRAM = """
import sys
from rich.console import Console
from lab.cli.output_errors import ignore_output_errors
ignore_output_errors('train.py')
console = Console()
sys.stdin.readline()  # waits until the reader has exited
for k in range(3):
  console.print(f'line {k}')
  print('and print')
  sys.stdout.write('buffered')
with open(sys.argv[1], 'w') as file:
  file.write('trained')
print('done', file=sys.stderr)
raise SystemExit(7)
"""
NOTICE = 'train.py: cannot write to stdout ({}): continuing without it\n'


def start(directory, **pipes):
  return subprocess.Popen(
    [sys.executable, '-c', PROGRAM, str(directory / 'result')], cwd=PROJECT, text=True, stdin=subprocess.PIPE, **pipes
  )


def test_a_process_survives_a_closed_pipe(tmp_path):
  process = start(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  process.stdout.close()
  _, error = process.communicate('go\n')
  assert error == NOTICE.format('Broken pipe') + 'done\n'
  assert process.returncode == 7
  assert (tmp_path / 'result').read_text() == 'trained'


def test_a_process_survives_a_closed_terminal(tmp_path):
  terminal, child = pty.openpty()
  process = start(tmp_path, stdout=child, stderr=child)
  os.close(child)
  os.close(terminal)
  process.communicate('go\n')
  assert process.returncode == 7
  assert (tmp_path / 'result').read_text() == 'trained'


def test_a_process_survives_a_full_disk(tmp_path):
  with open('/dev/full', 'w') as full:
    process = start(tmp_path, stdout=full, stderr=subprocess.PIPE)
    _, error = process.communicate('go\n')
  assert error == NOTICE.format('No space left on device') + 'done\n'
  assert process.returncode == 7


HANG_UP = """
import os, signal
signal.signal(signal.SIGHUP, signal.{handler})  # whatever the shell that runs the tests has set
from lab.cli import output_errors, signals
output_errors.ignore_output_errors('train.py')
signals.exit_on_signals()
os.kill(os.getpid(), signal.SIGHUP)
"""


def test_a_hangup_with_a_closed_terminal_exits_cleanly():
  with open('/dev/full', 'w') as full:
    ended = subprocess.run(
      [sys.executable, '-c', HANG_UP.format(handler='SIG_DFL')], cwd=PROJECT, stdout=full, stderr=full, timeout=60
    )
  assert ended.returncode == 75


def test_under_nohup_a_hangup_is_ignored():
  program = HANG_UP.format(handler='SIG_IGN')
  assert subprocess.run([sys.executable, '-c', program], cwd=PROJECT, timeout=60).returncode == 0


IMPORTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.{handler})
from lab.cli import startup
startup.prepare(sys.argv[1])
try:
  os.kill(os.getpid(), signal.SIGINT)  # as if while an extension module is initialised
except BaseException:
  raise ImportError('initialisation failed') from None
print('imported')
"""


@pytest.mark.parametrize(('command', 'code'), [('train.py', 75), ('inspect_gradients.py', 130)])
def test_an_interrupt_during_imports_is_one_line(command, code):
  ended = subprocess.run(
    [sys.executable, '-c', IMPORTS.format(handler='default_int_handler'), command],
    cwd=PROJECT,
    capture_output=True,
    text=True,
  )
  assert ended.returncode == code
  assert ended.stdout == ''
  assert ended.stderr.startswith(f'{command}: stopped')
  assert ended.stderr.count('\n') == 1


def test_an_ignored_interrupt_stays_ignored_in_commands_that_do_not_resume():
  program = IMPORTS.format(handler='SIG_IGN')
  ended = subprocess.run([sys.executable, '-c', program, 'reproduce.py'], cwd=PROJECT, capture_output=True, text=True)
  assert (ended.returncode, ended.stdout) == (0, 'imported\n')
