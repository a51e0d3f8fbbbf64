"""The cores of this machine that a process may use: of all, those that its affinity and its container leave it."""

import math
import os
import socket
import zlib
from pathlib import Path

PROC, GROUPS = Path('/proc/self/cgroup'), Path('/sys/fs/cgroup')


def cores() -> list[int]:
  """The cores that this process may use; no more than the CPU quota of its control group gives it time on.

  Where a quota leaves some of them out, which is a matter of the host's name: containers side by side, each with a name
  of its own, would else all take the first.
  """
  own = sorted(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else list(range(os.cpu_count() or 1))
  quota = cpu_quota()
  if quota is None or quota >= len(own):
    return own
  count, first = max(1, math.ceil(quota)), zlib.crc32(socket.gethostname().encode()) % len(own)
  return sorted((own + own)[first : first + count])


def cpu_quota(groups_of_process: Path = PROC, groups: Path = GROUPS) -> float | None:
  """How many CPUs' time the control groups of this process allow it; None if they set no limit, or there are none.

  Args:
    groups_of_process: the file that names them.
    groups: where they are mounted.
  """
  try:
    lines = groups_of_process.read_text().splitlines()
  except OSError:
    return None
  quotas = []
  for line in lines:
    _, controllers, group = line.split(':', 2)
    if not controllers:
      mounts, read = (groups, groups / 'unified'), _quota_v2
    elif 'cpu' in controllers.split(','):
      mounts, read = (groups / controllers, groups / 'cpu'), _quota_v1
    else:
      continue
    for (
      mount
    ) in mounts:  # in a container the group may be named as on the host, and its own be the root that is mounted
      path = Path(group.lstrip('/'))
      quotas += [read(mount / each) for each in (path, *path.parents)]
  return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(group: Path) -> float | None:
  quota, period = [*_numbers(group / 'cpu.max'), None, None][:2]
  return quota / period if quota and period else None


def _quota_v1(group: Path) -> float | None:
  quota, period = (next(iter(_numbers(group / f'cpu.cfs_{name}_us')), None) for name in ('quota', 'period'))
  return quota / period if quota and quota > 0 and period else None


def _numbers(path: Path) -> list[int | None]:
  """The numbers in a file; None for `max`. None at all if it cannot be read."""
  try:
    return [int(word) if word.lstrip('-').isdecimal() else None for word in path.read_text().split()]
  except OSError:
    return []
