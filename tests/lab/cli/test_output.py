"""Writing where nobody reads, or where nothing can be written."""

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
from lab.cli.output import outlive_readers
outlive_readers('train.py')
console = Console()
sys.stdin.readline()  # until the reader is gone
for k in range(3):
  console.print(f'line {k}')
  print('and print')
  sys.stdout.write('buffered')
with open(sys.argv[1], 'w') as file:
  file.write('trained')
print('told', file=sys.stderr)
raise SystemExit(7)
"""
NOTICE = 'train.py: stdout cannot be written to ({}): continuing without it\n'


def start(place, **pipes):
  return subprocess.Popen(
    [sys.executable, '-c', PROGRAM, str(place / 'result')], cwd=PROJECT, text=True, stdin=subprocess.PIPE, **pipes
  )


def test_a_pipe_that_nobody_reads_ends_nothing(tmp_path):
  process = start(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  process.stdout.close()
  _, told = process.communicate('go\n')
  assert told == NOTICE.format('Broken pipe') + 'told\n'
  assert process.returncode == 7
  assert (tmp_path / 'result').read_text() == 'trained'


def test_a_terminal_that_was_closed_ends_nothing(tmp_path):
  own, other = pty.openpty()
  process = start(tmp_path, stdout=other, stderr=other)
  os.close(other)
  os.close(own)
  process.communicate('go\n')
  assert process.returncode == 7
  assert (tmp_path / 'result').read_text() == 'trained'


def test_a_full_disk_under_the_output_ends_nothing(tmp_path):
  with open('/dev/full', 'w') as full:
    process = start(tmp_path, stdout=full, stderr=subprocess.PIPE)
    _, told = process.communicate('go\n')
  assert told == NOTICE.format('No space left on device') + 'told\n'
  assert process.returncode == 7


STARTS = """
import os, signal
from lab.cli import output
from lab.cli import signals
output.outlive_readers('train.py')
signals.leave_when_told()
os.kill(os.getpid(), signal.SIGHUP)
"""


def test_a_command_that_starts_as_its_terminal_closes_leaves_in_order():
  with open('/dev/full', 'w') as full:
    ended = subprocess.run([sys.executable, '-c', STARTS], cwd=PROJECT, stdout=full, stderr=full, timeout=60)
  assert ended.returncode == 75


def test_under_nohup_it_does_not_leave():
  program = 'import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)' + STARTS
  assert subprocess.run([sys.executable, '-c', program], cwd=PROJECT, timeout=60).returncode == 0


IMPORTS = """
import os, signal, sys
from lab.cli import start_up
start_up.prepare(sys.argv[1])
try:
  os.kill(os.getpid(), signal.SIGINT)  # as an extension module is initialised
except BaseException:
  raise ImportError('its initialisation failed') from None
print('imported')
"""


@pytest.mark.parametrize(('command', 'code'), [('train.py', 75), ('inspect_gradients.py', 130)])
def test_an_interrupt_while_modules_are_imported_is_one_line(command, code):
  ended = subprocess.run([sys.executable, '-c', IMPORTS, command], cwd=PROJECT, capture_output=True, text=True)
  assert ended.returncode == code
  assert ended.stdout == ''
  assert ended.stderr.startswith(f'{command}: stopped')
  assert ended.stderr.count('\n') == 1


def test_an_interrupt_that_is_ignored_ends_no_command_that_cannot_resume():
  program = 'import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)' + IMPORTS
  ended = subprocess.run([sys.executable, '-c', program, 'reproduce.py'], cwd=PROJECT, capture_output=True, text=True)
  assert (ended.returncode, ended.stdout) == (0, 'imported\n')
