import subprocess
import sys

import pytest

from lab.launch.worker import _log_failure
from training.config import ConfigError
from training.files import SaveFailed

FULL = OSError(28, 'No space left on device')


@pytest.mark.parametrize(
  ('error', 'message', 'traceback'),
  [
    (ConfigError('data.seed=-1: must be at least 0'), 'data.seed=-1: must be at least 0', False),
    (SaveFailed('checkpoints/20', FULL), 'checkpoints/20 could not be written (No space left on device)', False),
    (FULL, 'runs/a could not be written (No space left on device): earlier saves are intact', False),
    (OSError(28, 'No space left on device', 'b.json'), 'b.json could not be written (No space left', False),
    (ValueError('one\ntwo'), 'ValueError: one', True),
  ],
)
def test_a_failure_is_reported_in_one_line_and_logged(error, message, traceback, tmp_path, capfd):
  reported = _log_failure(error, 'runs/a')
  assert reported.startswith(message)
  assert '\n' not in reported
  log = capfd.readouterr().err
  assert message in log
  assert ('Traceback' in log or log.count('\n') > 1) == traceback


INLINE = """
import io, sys
import jax, jax.numpy as jnp
from absl import app
from lab.launch import worker
sys.stdin = io.StringIO()  # no runs

def main(argv):
  worker.main(argv)
  a_MM = jnp.ones((2000, 2000))
  product = jax.jit(jnp.matmul).lower(a_MM, a_MM).compile()
  print([product(a_MM, a_MM).is_ready() for _ in range(3)])

app.run(main)
"""


def test_programs_run_synchronously_in_a_worker():
  """Otherwise the next step would allocate its memory before the last one has released its own."""
  answer = subprocess.run([sys.executable, '-c', INLINE], capture_output=True, text=True)
  assert answer.stdout.split('\n')[-2] == '[True, True, True]', answer.stderr
