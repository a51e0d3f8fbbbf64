"""Determines how much more memory this process can allocate."""

import os
import re
from pathlib import Path

MEMINFO, CGROUP, CGROUPS = Path('/proc/meminfo'), Path('/proc/self/cgroup'), Path('/sys/fs/cgroup')


def free_memory() -> int:
  """Returns the bytes available without swapping, at most the memory limit of a control group (of a container)."""
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
  """Returns the memory limits of this process's control group and its ancestors (version 2), and that of version 1."""
  try:
    match = re.search(r'^0::/(.*)$', CGROUP.read_text(), re.MULTILINE)
  except OSError:
    return []
  folder = CGROUPS / (match[1] if match else '')
  files = [group / 'memory.max' for group in (folder, *folder.parents) if group.is_relative_to(CGROUPS)]
  files.append(CGROUPS / 'memory' / 'memory.limit_in_bytes')
  contents = [file.read_text().strip() for file in files if file.is_file()]
  return [int(content) for content in contents if content.isdecimal()]  # version 2 writes `max` for no limit
