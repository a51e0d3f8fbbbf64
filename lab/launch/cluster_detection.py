"""Detects the processes that a scheduler (Slurm, Open MPI, or a TPU pod) has started together.

Uses the private classes of JAX (0.10.2) with which jax.distributed.initialize detects them; no other module does. One
difference: JAX takes the number of Slurm tasks from SLURM_NTASKS, which in `salloc` and in a batch script counts the
tasks of the whole job. We take the number of tasks in the job step, all of which run the same command.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from lab.launch.process_group import JOIN_TIMEOUT, ProcessGroup
from training.config import ConfigError

# Slurm reserves the step numbers from this one up, for batch scripts, interactive `salloc` sessions and ssh.
_FIRST_RESERVED_STEP = 0xFFFFFFF0
_PORTS = 2**12  # use the last of the ephemeral ports, as JAX does
_HOST_PID_NAMESPACE = 'pid:[4026531836]'  # the PID namespace of a process outside any container
_UNKNOWN_MPI = (('OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_RANK'), ('PMI_SIZE', 'PMI_RANK'))


def detect_process_group() -> ProcessGroup | None:
  """The processes that the scheduler has started together; None if it has started this one alone.

  Raises:
    ConfigError: if the scheduler has started several processes, but their coordinator is unknown.
  """
  from jax._src.clusters import ClusterEnv  # slow to import

  known = {env.name: env for env in ClusterEnv._cluster_types}
  environment = os.environ
  try:
    if known['ompi'].is_env_present():
      return _process_group(known['ompi'], int(environment['OMPI_COMM_WORLD_SIZE']))
    tasks = tasks_in_step(environment)
    _check_mpi(environment, tasks)
    if tasks > 1 and known['slurm'].is_env_present():
      return _process_group(known['slurm'], tasks, environment.get('JAX_COORDINATOR_PORT') or port_of_step(environment))
    for name in ('gketpu', 'gcetpu'):
      if known[name].is_env_present():
        return _process_group(known[name], known[name].get_process_count())
  except ConfigError:
    raise
  except (ValueError, LookupError, OSError, RuntimeError, ImportError) as error:  # broken variables, or no metadata
    raise ConfigError(
      f'cannot detect which processes run together ({type(error).__name__}: {error}): set '
      '--coordinator=host:port, --num_processes and --process_id'
    ) from None
  return None


def tasks_in_step(environment: Mapping[str, str]) -> int:
  """The number of tasks in the Slurm step of this process; 1 if it is not a task of a step.

  Two cases count as 1 although the variables of a step are set: a command typed in a terminal was started once, and a
  shell may have inherited the variables of a step that it no longer belongs to (in tmux, for example). In the second
  case the process of the step's task is not an ancestor of this one.
  """
  step, tasks = environment.get('SLURM_STEP_ID', ''), environment.get('SLURM_STEP_NUM_TASKS', '')
  if not step.isdecimal() or not tasks.isdecimal() or int(step) >= _FIRST_RESERVED_STEP:
    return 1
  if sys.stdin is not None and sys.stdin.isatty():
    return 1
  task = environment.get('SLURM_TASK_PID', '')
  if task.isdecimal() and _in_host_pid_namespace() and int(task) not in _ancestors():
    return 1
  return int(tasks)


def port_of_step(environment: Mapping[str, str]) -> str:
  """A port for the coordinator of a Slurm step, which differs between jobs and between the steps of a job."""
  number = int(environment['SLURM_JOB_ID']) + 31 * int(environment['SLURM_STEP_ID'])
  return str(2**16 - _PORTS + number % _PORTS)


def _process_group(env, count: int, port: str | None = None) -> ProcessGroup | None:
  if count == 1:
    return None
  port = port or os.environ.get('JAX_COORDINATOR_PORT')
  coordinator = env.get_coordinator_address(timeout_secs=JOIN_TIMEOUT, override_coordinator_port=port)
  return ProcessGroup(coordinator, count, env.get_process_id(), env.get_local_process_id())


def _check_mpi(environment: Mapping[str, str], slurm_tasks: int) -> None:
  """Raises ConfigError if an MPI launcher started several processes whose coordinator JAX cannot find."""
  for size, rank in _UNKNOWN_MPI:
    count = environment.get(size, '')
    if count.isdecimal() and int(count) not in (1, slurm_tasks):
      raise ConfigError(
        f'{count} processes were started ({size}={count}), but their coordinator is unknown: add '
        f'--coordinator=host:port --num_processes={count} --process_id=${rank}'
      )


def _in_host_pid_namespace() -> bool:
  """Whether Slurm and this process use the same process ids; in a container with its own PID namespace they do not."""
  try:
    return os.readlink('/proc/self/ns/pid') == _HOST_PID_NAMESPACE
  except OSError:
    return False


def _ancestors() -> set[int]:
  """The ids of this process and of its ancestors, as far as /proc shows them."""
  found, pid = set[int](), os.getpid()
  while pid > 0 and pid not in found:
    found.add(pid)
    try:
      parent = re.search(r'^PPid:\s*(\d+)', Path(f'/proc/{pid}/status').read_text(), re.MULTILINE)
    except OSError:
      break
    pid = int(parent[1]) if parent else 0
  return found
