"""The machine that this process runs on: its processor, and the cores that the process may use."""

import math
import os
import platform
import socket
import zlib
from pathlib import Path

PROCESS_GROUPS, GROUPS = Path('/proc/self/cgroup'), Path('/sys/fs/cgroup')


def processor() -> str:
  """The model of this machine's processor, such as `AMD EPYC 9B14`."""
  cpuinfo = Path('/proc/cpuinfo')
  lines = cpuinfo.read_text(errors='replace').splitlines() if cpuinfo.exists() else []
  models = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
  return models[0] if models else platform.processor() or platform.machine()


def machine() -> str:
  """Cores and processor, such as `2 cores, AMD EPYC 9B14`."""
  return f'{len(cores())} cores, {processor()}'


def cores() -> list[int]:
  """The cores that this process may use: those in its affinity mask, at most as many as its CPU quota (cgroup) allows.

  If the quota allows fewer, the host's name decides which: otherwise containers on one machine, each with its own host
  name, would all use the first cores.
  """
  allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else list(range(os.cpu_count() or 1))
  quota = cpu_quota()
  if quota is None or quota >= len(allowed):
    return allowed
  count, first = max(1, math.ceil(quota)), zlib.crc32(socket.gethostname().encode()) % len(allowed)
  return sorted((allowed + allowed)[first : first + count])


def cpu_quota(process_groups: Path = PROCESS_GROUPS, groups: Path = GROUPS) -> float | None:
  """The CPU quota of this process's control groups, in CPUs; None if there is no group or no limit.

  Args:
    process_groups: the file that lists the groups of the process.
    groups: the folder where they are mounted.
  """
  try:
    lines = process_groups.read_text().splitlines()
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
    # In a container the file may give the group's name on the host, while the mounted root is the group itself.
    path = Path(group.lstrip('/'))
    quotas += [read(mount / each) for mount in mounts for each in (path, *path.parents)]
  return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(group: Path) -> float | None:
  quota, period = [*_numbers(group / 'cpu.max'), None, None][:2]
  return quota / period if quota and period else None


def _quota_v1(group: Path) -> float | None:
  quota, period = (next(iter(_numbers(group / f'cpu.cfs_{name}_us')), None) for name in ('quota', 'period'))
  return quota / period if quota and quota > 0 and period else None


def _numbers(path: Path) -> list[int | None]:
  """The numbers in a file, with None for `max`; empty if the file cannot be read."""
  try:
    return [int(word) if word.lstrip('-').isdecimal() else None for word in path.read_text().split()]
  except OSError:
    return []
