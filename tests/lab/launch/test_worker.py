import subprocess
import sys

import pytest

from lab.launch.worker import _log_failure
from training.config import ConfigError
from training.files import SaveFailed

FULL = OSError(28, 'No space left on device')


@pytest.mark.parametrize(
  ('error', 'told', 'traceback'),
  [
    (ConfigError('data.seed=-1: must be at least 0'), 'data.seed=-1: must be at least 0', False),
    (SaveFailed('checkpoints/20', FULL), 'checkpoints/20 could not be written (No space left on device): what', False),
    (FULL, 'runs/a could not be written (No space left on device): what was saved before is whole', False),
    (OSError(28, 'No space left on device', 'b.json'), 'b.json could not be written (No space left', False),
    (ValueError('one\ntwo'), 'ValueError: one', True),
  ],
)
def test_what_a_person_is_told_of_a_failure(error, told, traceback, tmp_path, capfd):
  message = _log_failure(error, 'runs/a')
  assert message.startswith(told)
  assert '\n' not in message
  log = capfd.readouterr().err
  assert told in log
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


def test_a_program_has_ended_when_a_worker_gets_its_result():
  """Else the next step finds the memory of the last one taken, and takes as much again."""
  answer = subprocess.run([sys.executable, '-c', INLINE], capture_output=True, text=True)
  assert answer.stdout.split('\n')[-2] == '[True, True, True]', answer.stderr
