"""Trains one run with several processes, each with its own devices, joined by JAX's distributed runtime.

Under Slurm, Open MPI and on a TPU pod the processes are detected; elsewhere three flags define them. Every process is
one `train.py` command, which starts a worker and monitors it: the runtime aborts a worker when another process is lost,
and the command reports that in one line.
"""

import errno
import itertools
import re
import socket
import time
from collections.abc import Callable

from absl import flags

from lab.launch.cluster_detection import detect_process_group
from lab.launch.process_group import JOIN_TIMEOUT, SINGLE_PROCESS, ProcessGroup
from training.config import ConfigError

COORDINATOR = flags.DEFINE_string(
  'coordinator', None, 'Train the run with several processes: host:port of process 0, the same for all of them.'
)
NUM_PROCESSES = flags.DEFINE_integer('num_processes', None, 'The number of processes, with --coordinator.')
PROCESS_ID = flags.DEFINE_integer('process_id', None, 'The index of this process, from 0, with --coordinator.')

NAME_TIMEOUT = 15  # seconds for a host name to resolve; a Kubernetes pod gets its name only once it runs
HEARTBEAT_TIMEOUT = 30  # seconds without a heartbeat until a process counts as lost


def from_flags_or_scheduler() -> ProcessGroup:
  """The processes that the flags define, otherwise those of the scheduler; SINGLE_PROCESS if neither defines any.

  Raises:
    ConfigError: if the flags or the scheduler's variables are incomplete or invalid.
  """
  return from_flags() or detect_process_group() or SINGLE_PROCESS


def from_flags() -> ProcessGroup | None:
  """The processes that the flags define; None if no flag is set. Workers receive their group only through these flags.

  Raises:
    ConfigError: if the flags are incomplete or invalid.
  """
  coordinator, count, index = COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value
  if coordinator is None and count is None and index is None:
    return None
  if coordinator is None or count is None or index is None:
    raise ConfigError('--coordinator=host:port, --num_processes and --process_id go together: set all three, or none')
  _split_address(coordinator)
  if count < 1:
    raise ConfigError(f'--num_processes={count}: must be at least 1')
  if not 0 <= index < count:
    raise ConfigError(f'--process_id={index}: must be between 0 and {count - 1}, with --num_processes={count}')
  return ProcessGroup(coordinator, count, index) if count > 1 else SINGLE_PROCESS


def check_coordinator(group: ProcessGroup, print_line: Callable[[str], None] = lambda line: None) -> None:
  """Checks that process 0 can listen; in the others, waits until it listens. Otherwise the runtime would abort.

  Args:
    group: the processes that train the run.
    print_line: prints a line; called at most once, if this process has to wait.

  Raises:
    ConfigError: if this is process 0 and it cannot listen on its port, or if process 0 does not listen in time.
  """
  if group.count == 1:
    return
  host, port = _split_address(group.coordinator)
  if group.index == 0:
    _check_port(group.coordinator, host, port)
    return
  start, printed = time.monotonic(), False
  while True:
    left = start + JOIN_TIMEOUT - time.monotonic()
    try:
      with socket.create_connection((host, port), timeout=max(0.1, left)):
        return
    except OSError as error:
      unknown = isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
      if left <= 0 or (unknown and left < JOIN_TIMEOUT - NAME_TIMEOUT):
        what = f'unknown host {host}' if unknown else error.strerror or 'no answer'
        timeout = min(JOIN_TIMEOUT, NAME_TIMEOUT) if unknown else JOIN_TIMEOUT
        raise ConfigError(
          f'--coordinator={group.coordinator} could not be reached within {timeout} s ({what}): is process 0 '
          'running there?'
        ) from None
      if not printed and left < JOIN_TIMEOUT - 2:
        print_line(f'waiting for process 0 at {group.coordinator} (at most {JOIN_TIMEOUT} s)')
        printed = True
      time.sleep(0.2)


def _check_port(coordinator: str, host: str, port: int) -> None:
  """Raises ConfigError if this process cannot listen on the port. The runtime itself would silently share it."""
  try:
    socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
  except (OSError, UnicodeError) as error:
    raise ConfigError(f'--coordinator={coordinator}: unknown host {host} ({error})') from None
  dual = socket.has_dualstack_ipv6()
  try:  # on all addresses, as the runtime listens
    socket.create_server(('', port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual).close()
  except OSError as error:
    what = {
      errno.EADDRINUSE: 'this port is in use; choose another one for all processes',
      errno.EACCES: 'only root may listen on this port; choose one from 1024 up',
    }.get(error.errno or 0, f'process 0 cannot listen there ({error.strerror})')
    raise ConfigError(f'--coordinator={coordinator}: {what}') from None


def _split_address(coordinator: str) -> tuple[str, int]:
  """Host and port of host:port or [IPv6]:port.

  Raises:
    ConfigError: if it is neither.
  """
  match = re.fullmatch(r'(?:\[([0-9a-fA-F:.]+(?:%\w+)?)\]|([^\s:\[\]/]+)):(\d{1,5})', coordinator)
  if match is None or not 0 < int(match[3]) < 2**16:
    raise ConfigError(
      f'--coordinator={coordinator}: write host:port, as in --coordinator=node1:9876, and an IPv6 address as [::1]:9876'
    )
  return match[1] or match[2], int(match[3])


def join(group: ProcessGroup) -> Callable[[], bool]:
  """Joins the other processes. Must be called before JAX initializes its devices.

  Returns:
    A function that returns whether to stop, which all processes must call equally often. Some time after one of them
    received SIGTERM it returns True in all of them, at the same call. Installing a Python handler for SIGTERM later
    would disable this.
  """
  import jax
  from jax.experimental import multihost_utils

  jax.distributed.initialize(
    group.coordinator, group.count, group.index, initialization_timeout=JOIN_TIMEOUT,
    heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT, shutdown_timeout_seconds=HEARTBEAT_TIMEOUT,
    cluster_detection_method='deactivate',  # otherwise a scheduler's variables would choose the GPUs
  )  # fmt: skip
  calls = itertools.count()
  return lambda: multihost_utils.reached_preemption_sync_point(next(calls))
