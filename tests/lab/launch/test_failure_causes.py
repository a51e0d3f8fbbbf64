import resource
import signal
from pathlib import Path

import pytest

from lab.launch import failure_causes


@pytest.mark.parametrize(
  ('code', 'log', 'out_of_memory', 'message'),
  [
    (3, '', False, 'its process exited with code 3'),
    (-9, '', False, 'its process was killed by SIGKILL (sent by a user, or by the system because memory ran out)'),
    (-9, '', True, 'its process was killed by SIGKILL (the system ran out of memory: use fewer --workers, or a'),
    (-15, '', True, 'its process was killed by SIGTERM'),
    (-24, '', False, 'its process was killed by SIGXCPU (it reached its limit of CPU time (ulimit -t))'),
    (-6, 'LLVM ERROR: pthread_create failed: Resource temporarily unavailable', False, 'SIGABRT (no further thread or'),
    (1, "RuntimeError: can't start new thread", False, 'its process exited with code 1 (no further thread or process'),
    (-64, '', False, 'its process was killed by SIGRTMAX'),
    (-50, '', False, 'its process was killed by signal 50'),
  ],
)
def test_the_cause_of_an_exit_is_described(code, log, out_of_memory, message):
  assert message in failure_causes.describe_exit(code, log, out_of_memory)


def test_every_signal_is_named():
  for number in signal.Signals:
    assert number.name in failure_causes.describe_exit(-number)


def test_the_limit_on_threads_is_named():
  soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
  resource.setrlimit(resource.RLIMIT_NPROC, (12345, hard))
  try:
    assert 'ulimit -u is 12345 here' in failure_causes.describe_error(RuntimeError("can't start new thread"))
  finally:
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
  assert failure_causes.describe_error(ValueError('one\ntwo')) == 'ValueError: one'


def test_oom_kills_are_counted(monkeypatch):
  monkeypatch.setattr(Path, 'read_text', lambda path: 'pgfault 12\noom_kill 3\nnuma_hit 9\n')
  assert failure_causes.count_oom_kills() == 3
