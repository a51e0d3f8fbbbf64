"""Another process that holds the lock or the claims of runs, until it is killed."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[3]
THIS_PROCESS = f'process {os.getpid()} on {socket.gethostname()}'
WITHOUT_LOCKS = f"""
sys.path.insert(0, {str(Path(__file__).parent)!r})
from failing_locks import fail_locks
fail_locks()
"""


@contextlib.contextmanager
def held_elsewhere(held: str, before: str = ''):
  """Yields another process that has entered `held`, an expression; it is killed at the end."""
  program = f"""
import os, pathlib, signal, sys
from training.run_files import locks
{before}
with {held}:
  print('entered', flush=True)
  sys.stdin.read()
  os.kill(os.getpid(), signal.SIGKILL)
"""
  pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
  with subprocess.Popen([sys.executable, '-c', program], text=True, cwd=PROJECT, **pipes) as process:
    assert process.stdout.readline() == 'entered\n'
    yield process
    process.stdin.close()
    assert process.wait() == -signal.SIGKILL


def lock_of(directory) -> str:
  return f'locks.locked(pathlib.Path({str(directory / "lock")!r}))'


def claim_of(*directories) -> str:
  return f'locks.claimed([pathlib.Path(path) for path in {[str(directory) for directory in directories]!r}])'


def content_of(folder: Path) -> dict[str, bytes]:
  return {str(path): path.read_bytes() for path in folder.rglob('*') if path.is_file()}
