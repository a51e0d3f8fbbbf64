"""Several processes that train one run together, each with its own devices, joined by JAX's distributed runtime.

Under Slurm, Open MPI or on a TPU pod the runtime finds out by itself who they are; elsewhere three flags say. Each is
the command `train.py`, which starts a worker and watches over it: the runtime ends a worker whose fellow has been lost
by aborting it, and the command makes one line of that.
"""

import dataclasses
import errno
import itertools
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

from absl import flags

from lab.launch import cluster_detection
from lab.launch.cluster_detection import PATIENCE
from training.config import ConfigError

COORDINATOR = flags.DEFINE_string(
  'coordinator', None, 'Several processes train the run together: host:port of process 0, the same in all of them.'
)
NUM_PROCESSES = flags.DEFINE_integer('num_processes', None, 'How many they are.')
PROCESS_ID = flags.DEFINE_integer('process_id', None, 'Which of them this is, from 0.')

NAME_PATIENCE = 15  # seconds for a host to get its name, as a pod of Kubernetes does only once it runs
HEARTBEAT = 30  # seconds without a sign of life until a process counts as lost
_LOST = re.compile(r'unhealthy \(stopped sending heartbeats\):\s*(\d[\d\s,]*)')  # what the runtime writes as it aborts
_COORDINATOR_LOST = re.compile(r'Either the leader task was preempted')
_OUT_OF_STEP = re.compile(r'gloo::EnforceNotMet')  # on CPUs, when the devices left go on with other collectives
_NOT_ALL_CAME = re.compile(r'DEADLINE_EXCEEDED.*\n*RPC: \S*/RegisterTask')


@dataclasses.dataclass(frozen=True)
class Processes:
  """Who they are.

  Attributes:
    coordinator: host:port that process 0 listens on.
    count: how many.
    index: which one this is.
    local_index: which of its host it is, where the scheduler means each to have one GPU there; else None.
  """

  coordinator: str
  count: int
  index: int
  local_index: int | None = None

  @property
  def flags(self) -> list[str]:
    """The flags that say so to a worker."""
    return [f'--coordinator={self.coordinator}', f'--num_processes={self.count}', f'--process_id={self.index}']

  @property
  def log(self) -> str:
    """The name of this process's log in the directory of the run."""
    return f'log_{self.index}.txt' if self.index else 'log.txt'


ALONE = Processes('', 1, 0)


def asked_for() -> Processes:
  """The processes that the flags name, or else the scheduler; ALONE if there is one.

  Raises:
    ConfigError: if the flags are given in part, or make no sense, or the scheduler's variables.
  """
  return named_by_flags() or _by_scheduler()


def named_by_flags() -> Processes | None:
  """The processes that the flags name, as always for a worker; None if they name none.

  Raises:
    ConfigError: if they are given in part, or make no sense.
  """
  coordinator, count, index = COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value
  if coordinator is None and count is None and index is None:
    return None
  if coordinator is None or count is None or index is None:
    raise ConfigError('--coordinator=host:port, --num_processes and --process_id go together: give all three, or none')
  _split(coordinator)
  if count < 1:
    raise ConfigError(f'--num_processes={count}: must be at least 1')
  if not 0 <= index < count:
    raise ConfigError(f'--process_id={index}: of {count} processes, counted from 0, the last is {count - 1}')
  return Processes(coordinator, count, index) if count > 1 else ALONE


def _by_scheduler() -> Processes:
  """As the scheduler has started them; ALONE if there is none, or it has started one."""
  started = cluster_detection.started_by_scheduler()
  return ALONE if started is None else Processes(**dataclasses.asdict(started))


def check_coordinator(processes: Processes, tell: Callable[[str], None] = lambda line: None) -> None:
  """Checks that process 0 can listen, or waits for it to do so: the runtime would abort.

  Args:
    processes: of which this is one.
    tell: is given a line to print, once, where others are waited for.

  Raises:
    ConfigError: if this is process 0 and cannot listen on its port, or if another and it does not within PATIENCE.
  """
  if processes.count == 1:
    return
  host, port = _split(processes.coordinator)
  if processes.index == 0:
    _check_port(processes.coordinator, host, port)
    return
  start, told = time.monotonic(), False
  while True:
    left = start + PATIENCE - time.monotonic()
    try:
      with socket.create_connection((host, port), timeout=max(0.1, left)):
        return
    except OSError as error:
      unknown = isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
      if left <= 0 or (unknown and left < PATIENCE - NAME_PATIENCE):
        what = f'{host} is the name of no host' if unknown else error.strerror or 'no answer'
        within = min(PATIENCE, NAME_PATIENCE) if unknown else PATIENCE
        raise ConfigError(
          f'--coordinator={processes.coordinator} could not be reached within {within} s ({what}): is process 0 '
          'running there?'
        ) from None
      if not told and left < PATIENCE - 2:
        tell(f'waiting for process 0 at {processes.coordinator} ({PATIENCE} s at most)')
        told = True
      time.sleep(0.2)


def _check_port(coordinator: str, host: str, port: int) -> None:
  """Raises ConfigError if nothing can listen there. The runtime itself shares a port without a word."""
  try:
    socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
  except (OSError, UnicodeError) as error:
    raise ConfigError(f'--coordinator={coordinator}: {host} is the name of no host ({error})') from None
  dual = socket.has_dualstack_ipv6()
  try:  # on all addresses, as the runtime listens
    socket.create_server(('', port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual).close()
  except OSError as error:
    what = {
      errno.EADDRINUSE: 'this port is in use; give another one to all processes',
      errno.EACCES: 'only root may listen on this port; take one from 1024',
    }.get(error.errno or 0, f'process 0 cannot listen there ({error.strerror})')
    raise ConfigError(f'--coordinator={coordinator}: {what}') from None


def _split(coordinator: str) -> tuple[str, int]:
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


def join(processes: Processes) -> Callable[[], bool]:
  """Joins the others, which must be done before anything asks for a device.

  Returns:
    What tells, asked by all processes equally often, whether to stop there: some time after one of them had a SIGTERM,
    all are told so at the same point. A handler of Python's for SIGTERM that is set from now on would undo it.
  """
  import jax
  from jax.experimental import multihost_utils

  jax.distributed.initialize(
    processes.coordinator, processes.count, processes.index, initialization_timeout=PATIENCE,
    heartbeat_timeout_seconds=HEARTBEAT, shutdown_timeout_seconds=HEARTBEAT,
    cluster_detection_method='deactivate',  # or a scheduler's variables would choose the GPUs
  )  # fmt: skip
  times_asked = itertools.count()
  return lambda: multihost_utils.reached_preemption_sync_point(next(times_asked))


def verdict(log: Path, start: int, processes: Processes) -> str | None:
  """Who was lost, from what the runtime has written to a log since it had `start` bytes; None if it says nothing."""
  text = log.read_bytes()[start:].decode('utf8', errors='replace') if log.exists() else ''
  if _NOT_ALL_CAME.search(text):
    return f'not all of the {processes.count} processes came within {PATIENCE} s'
  if lost := _LOST.search(text):
    who = f'process {", ".join(re.findall(r"[0-9]+", lost[1]))} of {processes.count}'
  elif _COORDINATOR_LOST.search(text):
    who = f'process 0 of {processes.count}'
  elif _OUT_OF_STEP.search(text):
    who = f'process {1 - processes.index} of 2' if processes.count == 2 else f'one of the {processes.count} processes'
  else:
    return None
  return f'{who} was lost; the same commands again resume from the last checkpoint'
