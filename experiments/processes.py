"""Several processes that train one run together, each with its own devices, joined by JAX's distributed runtime.

Under Slurm, Open MPI or on a TPU pod the runtime finds out by itself who they are; elsewhere three flags say. Each is
the command `train.py`, which starts a worker and watches over it: the runtime ends a worker whose fellow has been lost
by aborting it, and the command makes one line of that.
"""

import dataclasses
import itertools
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

from absl import flags

from training.config import ConfigError

COORDINATOR = flags.DEFINE_string(
  'coordinator', None, 'Several processes train the run together: host:port of process 0, the same in all of them.'
)
NUM_PROCESSES = flags.DEFINE_integer('num_processes', None, 'How many they are.')
PROCESS_ID = flags.DEFINE_integer('process_id', None, 'Which of them this is, from 0.')

SCHEDULERS = ('slurm', 'ompi', 'gcetpu', 'gketpu')
PATIENCE = 120  # seconds for all processes to come
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
    one_device: whether the scheduler gives each process one GPU of its host.
  """

  coordinator: str
  count: int
  index: int
  one_device: bool = False

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
    ConfigError: if the flags are given in part, or make no sense.
  """
  coordinator, count, index = COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value
  if coordinator is None and count is None and index is None:
    return _by_scheduler()
  if coordinator is None or count is None or index is None:
    raise ConfigError('--coordinator=host:port, --num_processes and --process_id go together: give all three, or none')
  host, _, port = coordinator.rpartition(':')
  if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
    raise ConfigError(f'--coordinator={coordinator}: write host:port, as in --coordinator=node1:9876')
  if count < 1:
    raise ConfigError(f'--num_processes={count}: must be at least 1')
  if not 0 <= index < count:
    raise ConfigError(f'--process_id={index}: of {count} processes, counted from 0, the last is {count - 1}')
  return Processes(coordinator, count, index) if count > 1 else ALONE


def _by_scheduler() -> Processes:
  """As jax.distributed.initialize finds out, which would do so in the worker; JAX takes a while to import."""
  from jax._src.clusters import ClusterEnv

  env = next((env for env in ClusterEnv._cluster_types if env.name in SCHEDULERS and env.is_env_present()), None)
  if env is None or env.get_process_count() == 1:
    return ALONE
  coordinator = env.get_coordinator_address(timeout_secs=PATIENCE, override_coordinator_port=None)
  return Processes(coordinator, env.get_process_count(), env.get_process_id(), env.get_local_process_id() is not None)


def check_coordinator(processes: Processes) -> None:
  """Waits for process 0 to listen; raises ConfigError if it does not within PATIENCE. The runtime would abort."""
  host, _, port = processes.coordinator.rpartition(':')
  end = time.monotonic() + PATIENCE
  while processes.index > 0:
    try:
      with socket.create_connection((host.strip('[]'), int(port)), timeout=max(0.1, end - time.monotonic())):
        return
    except OSError as error:
      if time.monotonic() > end:
        raise ConfigError(
          f'--coordinator={processes.coordinator} could not be reached within {PATIENCE} s ({error}): '
          'is process 0 running there?'
        ) from None
      time.sleep(0.2)


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
  return f'{who} was lost; the same commands again go on from the last checkpoint'
