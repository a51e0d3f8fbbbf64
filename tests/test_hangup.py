"""A closed terminal, a command killed without its workers, and output into a closed pipe."""

import contextlib
import os
import pty
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kill_many_times import COMMAND, MOMENTS, compare, finish, last_step, runs_of, start, wait_for

from training.run_files import locks
from training.run_files.checkpoint import steps_in

# A separate program, because this process has JAX's threads and must not fork.
TAKE_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory) -> Path:
  folder = tmp_path_factory.mktemp('uninterrupted')
  finish(folder, folder / 'cache')
  return folder


@contextlib.contextmanager
def in_a_terminal(folder: Path, cache: Path, ignored: bool):
  """Runs the command in a new terminal, with SIGHUP ignored or not; yields the process and a function to hang up."""
  folder.mkdir(exist_ok=True)
  terminal, child = pty.openpty()
  environment = os.environ | {'BLOCKLAB_CACHE': str(cache)}
  process = subprocess.Popen(
    [sys.executable, '-c', TAKE_TERMINAL, 'SIG_IGN' if ignored else 'SIG_DFL', *COMMAND],
    cwd=folder, env=environment, stdin=child, stdout=child, stderr=child, start_new_session=True,
  )  # fmt: skip
  os.close(child)
  closed = threading.Event()

  def drain():
    while not closed.is_set():
      if select.select([terminal], [], [], 0.05)[0]:
        os.read(terminal, 4096)
    os.close(terminal)

  threading.Thread(target=drain).start()
  yield process, closed.set


@pytest.mark.slow
def test_a_closed_terminal_stops_the_command_unless_under_nohup(uninterrupted, tmp_path):
  cache, folder = uninterrupted / 'cache', tmp_path / 'folder'
  with in_a_terminal(folder, cache, ignored=False) as (process, close):
    wait_for(lambda: last_step(runs_of(folder)[0]) > 0, process)
    close()
    assert process.wait(30) == 75
  assert steps_in(runs_of(folder)[0] / 'checkpoints')[0] == last_step(runs_of(folder)[0]) > 0
  assert 'Traceback' not in (runs_of(folder)[0] / 'log.txt').read_text()
  with in_a_terminal(folder, cache, ignored=True) as (process, close):
    wait_for(lambda: last_step(runs_of(folder)[1]) > 0, process)
    close()
    assert process.wait(120) == 0
  compare(folder, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize('moment', ['compile', 'step', 'evaluation', 'save', 'between runs'])
def test_after_a_command_is_killed_without_its_workers_the_next_one_resumes(uninterrupted, tmp_path, moment):
  cache, folder = uninterrupted / 'cache', tmp_path / 'folder'
  process = start(folder, tmp_path / 'cold' if moment == 'compile' else cache)
  wait_for(lambda: MOMENTS[moment][0](folder), process)
  process.kill()
  process.wait()
  started = time.monotonic()
  while any(locks.trainer(run) for run in runs_of(folder)):
    time.sleep(0.01)
  assert time.monotonic() - started < 10
  process = start(folder, cache)
  assert process.wait() == 0, (folder / 'output.txt').read_text()
  compare(folder, uninterrupted)


@pytest.mark.slow
def test_a_closed_pipe_stops_no_run(uninterrupted, tmp_path):
  folder = tmp_path / 'folder'
  folder.mkdir()
  environment = os.environ | {'BLOCKLAB_CACHE': str(uninterrupted / 'cache')}
  pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
  with subprocess.Popen(COMMAND, cwd=folder, env=environment, text=True, **pipes) as process:
    head = subprocess.run(['head', '-1'], stdin=process.stdout, capture_output=True, text=True)
    process.stdout.close()
    error = process.stderr.read()
  assert head.stdout.count('\n') == 1
  assert error == 'train.py: cannot write to stdout (Broken pipe): continuing without it\n'
  assert process.returncode == 0
  compare(folder, uninterrupted)
