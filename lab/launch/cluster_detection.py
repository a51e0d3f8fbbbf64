"""Which processes a scheduler has started together: Slurm, Open MPI, or a TPU pod.

JAX finds out in the same way in jax.distributed.initialize, by classes of its own that are private (0.10.2); what we
read of them is read here alone. It takes Slurm's number of tasks from SLURM_NTASKS, which in `salloc` and in a batch
script is that of the whole job; how many run one command is the step's own number.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from training.config import ConfigError

PATIENCE = 120  # seconds for all processes to come
_SPECIAL_STEPS = 0xFFFFFFF0  # from here on: a batch script's step, `salloc`'s interactive one, the one of ssh
_PORTS = 2**12  # the last of the ephemeral ones, as JAX has it
_HOST_NAMESPACE = 'pid:[4026531836]'  # of process numbers, as of a process that is in no container
_UNKNOWN_MPI = (('OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_RANK'), ('PMI_SIZE', 'PMI_RANK'))


@dataclasses.dataclass(frozen=True)
class Started:
  """What a scheduler says of the process that asks.

  Attributes:
    coordinator: host:port that process 0 is to listen on.
    count: how many processes.
    index: which of them asks.
    local_index: which of its host it is, if each is to have one GPU there; else None.
  """

  coordinator: str
  count: int
  index: int
  local_index: int | None


def started_by_scheduler() -> Started | None:
  """What the scheduler says; None if this process is on its own.

  Raises:
    ConfigError: if it is one of several that do not know where to meet.
  """
  from jax._src.clusters import ClusterEnv  # it takes a while to import

  known = {env.name: env for env in ClusterEnv._cluster_types}
  environment = os.environ
  try:
    if known['ompi'].is_env_present():
      return _read(known['ompi'], int(environment['OMPI_COMM_WORLD_SIZE']))
    tasks = step_tasks(environment)
    _check_mpi(environment, tasks)
    if tasks > 1 and known['slurm'].is_env_present():
      return _read(known['slurm'], tasks, environment.get('JAX_COORDINATOR_PORT') or slurm_port(environment))
    for name in ('gketpu', 'gcetpu'):
      if known[name].is_env_present():
        return _read(known[name], known[name].get_process_count())
  except ConfigError:
    raise
  except (ValueError, LookupError, OSError, RuntimeError, ImportError) as error:  # variables cut short, no metadata
    raise ConfigError(
      f'the scheduler does not say which processes run together ({type(error).__name__}: {error}): say so with '
      '--coordinator=host:port, --num_processes and --process_id'
    ) from None
  return None


def step_tasks(environment: Mapping[str, str]) -> int:
  """How many tasks of Slurm run the command that asks; 1 if Slurm did not start it as one of several.

  A terminal belongs to one person, who typed the command once, whatever the shell's variables say. And variables that
  a shell has inherited from a step, as in tmux, are of no task if that step's process is not above this one.
  """
  step, tasks = environment.get('SLURM_STEP_ID', ''), environment.get('SLURM_STEP_NUM_TASKS', '')
  if not step.isdecimal() or not tasks.isdecimal() or int(step) >= _SPECIAL_STEPS:
    return 1
  if sys.stdin is not None and sys.stdin.isatty():
    return 1
  task = environment.get('SLURM_TASK_PID', '')
  if task.isdecimal() and _numbers_are_the_hosts() and int(task) not in _ancestors():
    return 1
  return int(tasks)


def slurm_port(environment: Mapping[str, str]) -> str:
  """A port for the processes of a step: another for each job, and for each step of a job."""
  number = int(environment['SLURM_JOB_ID']) + 31 * int(environment['SLURM_STEP_ID'])
  return str(2**16 - _PORTS + number % _PORTS)


def _read(env, count: int, port: str | None = None) -> Started | None:
  if count == 1:
    return None
  port = port or os.environ.get('JAX_COORDINATOR_PORT')
  coordinator = env.get_coordinator_address(timeout_secs=PATIENCE, override_coordinator_port=port)
  return Started(coordinator, count, env.get_process_id(), env.get_local_process_id())


def _check_mpi(environment: Mapping[str, str], slurm_tasks: int) -> None:
  """Refuses to be one of several that were started by an MPI of which JAX knows no address."""
  for size, rank in _UNKNOWN_MPI:
    count = environment.get(size, '')
    if count.isdecimal() and int(count) not in (1, slurm_tasks):
      raise ConfigError(
        f'{count} processes were started ({size}={count}), and nothing says where they meet: add '
        f'--coordinator=host:port --num_processes={count} --process_id=${rank}'
      )


def _numbers_are_the_hosts() -> bool:
  """Whether processes have the numbers here that Slurm knows them by, as in no container of another namespace."""
  try:
    return os.readlink('/proc/self/ns/pid') == _HOST_NAMESPACE
  except OSError:
    return False


def _ancestors() -> set[int]:
  """This process and those above it, as far as they can be seen."""
  found, number = set[int](), os.getpid()
  while number > 0 and number not in found:
    found.add(number)
    try:
      parent = re.search(r'^PPid:\s*(\d+)', Path(f'/proc/{number}/status').read_text(), re.MULTILINE)
    except OSError:
      break
    number = int(parent[1]) if parent else 0
  return found
