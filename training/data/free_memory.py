"""How much memory a process may still take."""

import os
import re
from pathlib import Path

MEMINFO, CGROUP, CGROUPS = Path('/proc/meminfo'), Path('/proc/self/cgroup'), Path('/sys/fs/cgroup')


def free_memory() -> int:
  """Bytes: what the system can give without swapping, within the limits of the control groups (a container's)."""
  return min([_system_memory(), *_cgroup_limits()])


def _system_memory() -> int:
  try:
    available = re.search(r'^MemAvailable: +(\d+) kB$', MEMINFO.read_text(), re.MULTILINE)
  except OSError:  # not Linux
    available = None
  if available:
    return int(available[1]) * 1024
  return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')


def _cgroup_limits() -> list[int]:
  """The limits of version 2 of this process's group and of those it lies in, and of version 1."""
  try:
    own = re.search(r'^0::/(.*)$', CGROUP.read_text(), re.MULTILINE)
  except OSError:
    return []
  folder = CGROUPS / (own[1] if own else '')
  files = [place / 'memory.max' for place in (folder, *folder.parents) if place.is_relative_to(CGROUPS)]
  files.append(CGROUPS / 'memory' / 'memory.limit_in_bytes')
  contents = [file.read_text().strip() for file in files if file.is_file()]
  return [int(content) for content in contents if content.isdecimal()]  # version 2 writes `max` for none
