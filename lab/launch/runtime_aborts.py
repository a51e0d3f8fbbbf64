"""Determines from the log of a worker why JAX's distributed runtime has aborted it.

The runtime (jaxlib 0.10.2) aborts a process when another process of the group is lost, and offers no callback. The
only evidence is its log messages, whose wording may change with any version.
"""

import re
from pathlib import Path

from lab.launch.process_group import JOIN_TIMEOUT, ProcessGroup

_PROCESSES_LOST = re.compile(r'unhealthy \(stopped sending heartbeats\):\s*(\d[\d\s,]*)')
_COORDINATOR_LOST = re.compile(r'Either the leader task was preempted')
_COLLECTIVE_MISMATCH = re.compile(r'gloo::EnforceNotMet')  # on CPUs, when the remaining processes run other collectives
_JOIN_TIMED_OUT = re.compile(r'DEADLINE_EXCEEDED.*\n*RPC: \S*/RegisterTask')


def describe_abort(log: Path, start: int, group: ProcessGroup) -> str | None:
  """Describes in one line why the runtime aborted a worker; None if the log does not show an abort.

  Args:
    log: the log file of the worker.
    start: the size of the file in bytes when the worker started the run.
    group: the processes that train the run.
  """
  text = log.read_bytes()[start:].decode('utf8', errors='replace') if log.exists() else ''
  if _JOIN_TIMED_OUT.search(text):
    return f'not all {group.count} processes joined within {JOIN_TIMEOUT} s'
  if lost := _PROCESSES_LOST.search(text):
    indices = re.findall(r'[0-9]+', lost[1])
    which = f'process{"es" if len(indices) > 1 else ""} {", ".join(indices)} of {group.count}'
  elif _COORDINATOR_LOST.search(text):
    which = f'process 0 of {group.count}'
  elif _COLLECTIVE_MISMATCH.search(text):
    which = f'process {1 - group.index} of 2' if group.count == 2 else f'one of the {group.count} processes'
  else:
    return None
  return f'lost {which}; run the same commands again to resume from the last checkpoint'
