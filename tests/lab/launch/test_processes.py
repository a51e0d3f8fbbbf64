import errno
import re
import socket

import pytest

from lab.launch import processes
from lab.launch.processes import Processes, check_coordinator, verdict
from training.config import ConfigError

# What jaxlib writes as it aborts a process, but for the stack.
HEARTBEAT = (
  'F1130 04:14:36.523214 client.h:80] Terminating process because the JAX distributed service detected fatal errors. '
  'absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n1\nThe tasks have '
  'crashed.'
)
TWO = HEARTBEAT.replace('\n1\n', '\n1\n3\n')
COORDINATOR = (
  'absl::Status: UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was preempted/died/'
  'restarted unexpectedly or this task is experiencing network issues. Check earlier logs from 1) this task'
)
OUT_OF_STEP = (
  "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc:459] "
  "op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size."
)
NOT_ALL = (
  'absl::Status: DEADLINE_EXCEEDED: Deadline Exceeded\n\nRPC: /xla.coordination.CoordinationService/RegisterTask'
)


@pytest.mark.parametrize(
  ('log', 'told'),
  [
    (HEARTBEAT, 'process 1 of 4 was lost; the same commands again'),
    (TWO, 'process 1, 3 of 4 was lost; the same commands again'),
    (COORDINATOR, 'process 0 of 4 was lost; the same commands again'),
    (OUT_OF_STEP, 'one of the 4 processes was lost; the same commands again'),
    (NOT_ALL, 'not all of the 4 processes came within 120 s'),
    ('Traceback\nMemoryError', None),
  ],
)
def test_an_abort_of_the_runtime_becomes_one_line(log, told, tmp_path):
  path, earlier = tmp_path / 'log.txt', TWO + '\n'
  path.write_text(earlier + log)
  found = verdict(path, len(earlier), Processes('node:1', 4, 2))
  assert found is None if told is None else found.startswith(told)
  assert verdict(tmp_path / 'none.txt', 0, Processes('node:1', 4, 2)) is None


@pytest.fixture
def port():
  """One that is listened on."""
  with socket.create_server(('localhost', 0)) as server:
    yield server.getsockname()[1]


@pytest.mark.parametrize('host', ['localhost', '127.0.0.1', '[::1]'])
def test_a_port_that_is_in_use_is_refused_before_anything_listens(host, port):
  coordinator = f'{host}:{port}'
  with pytest.raises(ConfigError, match=re.escape(f'--coordinator={coordinator}: this port is in use')):
    check_coordinator(Processes(coordinator, 2, 0))


def test_a_free_port_is_free_again_after_it_was_checked():
  with socket.create_server(('localhost', 0)) as server:
    coordinator = f'localhost:{server.getsockname()[1]}'
  for _ in range(2):
    check_coordinator(Processes(coordinator, 2, 0))


def test_a_port_that_only_root_may_use_is_told(monkeypatch):
  def refuse(*args, **options):
    raise PermissionError(errno.EACCES, 'Permission denied')

  monkeypatch.setattr('socket.create_server', refuse)
  with pytest.raises(ConfigError, match='--coordinator=localhost:80: only root may listen on this port'):
    check_coordinator(Processes('localhost:80', 2, 0))


def test_a_name_of_no_host_is_told_by_each(monkeypatch):
  monkeypatch.setattr(processes, 'NAME_PATIENCE', 0.1)
  for index in (0, 1):
    with pytest.raises(ConfigError, match=r'nowhere\.invalid is the name of no host'):
      check_coordinator(Processes('nowhere.invalid:9876', 2, index))


def test_who_waits_for_the_first_process_says_so(port, monkeypatch):
  """And comes to it at an IPv6 address as at any other, or gives up."""
  with socket.create_server(('::1', 0), family=socket.AF_INET6) as server:
    check_coordinator(Processes(f'[::1]:{server.getsockname()[1]}', 2, 1))
  lines: list[str] = []
  monkeypatch.setattr(processes, 'PATIENCE', 2.5)
  with pytest.raises(ConfigError, match=r'could not be reached within 2\.5 s \(Connection refused\): is process 0'):
    check_coordinator(Processes('127.0.0.1:1', 2, 1), lines.append)
  assert lines == ['waiting for process 0 at 127.0.0.1:1 (2.5 s at most)']


@pytest.mark.parametrize(
  'coordinator',
  ['', 'node', 'node:', ':1', 'node:0', 'node:65536', 'node:-1', '::1:80', 'http://node:80', '[::1]', 'a b:1'],
)
def test_what_is_no_address_is_refused(coordinator):
  with pytest.raises(ConfigError, match=r'write host:port, as in --coordinator=node1:9876, and an IPv6 address as'):
    processes._split(coordinator)
