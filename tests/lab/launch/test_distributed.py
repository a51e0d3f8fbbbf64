import errno
import re
import socket

import pytest

from lab.launch import distributed
from lab.launch.distributed import check_coordinator
from lab.launch.process_group import ProcessGroup
from training.config import ConfigError


@pytest.fixture
def port():
  """A port on which a server listens."""
  with socket.create_server(('localhost', 0)) as server:
    yield server.getsockname()[1]


@pytest.mark.parametrize('host', ['localhost', '127.0.0.1', '[::1]'])
def test_a_port_in_use_is_rejected(host, port):
  coordinator = f'{host}:{port}'
  with pytest.raises(ConfigError, match=re.escape(f'--coordinator={coordinator}: this port is in use')):
    check_coordinator(ProcessGroup(coordinator, 2, 0))


def test_checking_a_port_leaves_it_free():
  with socket.create_server(('localhost', 0)) as server:
    coordinator = f'localhost:{server.getsockname()[1]}'
  for _ in range(2):
    check_coordinator(ProcessGroup(coordinator, 2, 0))


def test_a_port_that_only_root_may_use_is_rejected(monkeypatch):
  def refuse(*args, **options):
    raise PermissionError(errno.EACCES, 'Permission denied')

  monkeypatch.setattr('socket.create_server', refuse)
  with pytest.raises(ConfigError, match='--coordinator=localhost:80: only root may listen on this port'):
    check_coordinator(ProcessGroup('localhost:80', 2, 0))


def test_an_unknown_host_is_rejected_by_every_process(monkeypatch):
  monkeypatch.setattr(distributed, 'NAME_TIMEOUT', 0.1)
  for index in (0, 1):
    with pytest.raises(ConfigError, match=r'unknown host nowhere\.invalid'):
      check_coordinator(ProcessGroup('nowhere.invalid:9876', 2, index))


def test_the_other_processes_print_that_they_wait_for_process_0(port, monkeypatch):
  """They connect to an IPv6 address as to any other, and give up after a timeout."""
  with socket.create_server(('::1', 0), family=socket.AF_INET6) as server:
    check_coordinator(ProcessGroup(f'[::1]:{server.getsockname()[1]}', 2, 1))
  lines: list[str] = []
  monkeypatch.setattr(distributed, 'JOIN_TIMEOUT', 2.5)
  with pytest.raises(ConfigError, match=r'could not be reached within 2\.5 s \(Connection refused\): is process 0'):
    check_coordinator(ProcessGroup('127.0.0.1:1', 2, 1), lines.append)
  assert lines == ['waiting for process 0 at 127.0.0.1:1 (at most 2.5 s)']


@pytest.mark.parametrize(
  'coordinator',
  ['', 'node', 'node:', ':1', 'node:0', 'node:65536', 'node:-1', '::1:80', 'http://node:80', '[::1]', 'a b:1'],
)
def test_an_invalid_address_is_rejected(coordinator):
  with pytest.raises(ConfigError, match=r'write host:port, as in --coordinator=node1:9876, and an IPv6 address as'):
    distributed._split_address(coordinator)
