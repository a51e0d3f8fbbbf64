"""Determines why a worker exited unexpectedly or could not start, from its exit code, log, and system counters."""

import re
import resource
import signal
from pathlib import Path

_HINTS = {
  signal.SIGKILL: 'sent by a user, or by the system because memory ran out',
  signal.SIGXCPU: 'it reached its limit of CPU time (ulimit -t)',
  signal.SIGBUS: 'a memory-mapped file could not be read, or the disk was full',
  signal.SIGABRT: 'it aborted; see its log',
  signal.SIGSEGV: 'it crashed',
  signal.SIGILL: 'it crashed: jaxlib may have been built for another processor',
}
# The messages of Python, XLA, LLVM and OpenBLAS.
_NO_THREAD = re.compile(
  r"can't start new thread|pthread_create|Resource temporarily unavailable|thread constructor failed"
)


def describe_exit(code: int, log: str = '', out_of_memory: bool = False) -> str:
  """Describes in one line why a worker exited.

  Args:
    code: its exit code; -n if signal n killed it.
    log: the text that it has written to its log since it started the run.
    out_of_memory: whether the system has killed a process for lack of memory since then.
  """
  if code >= 0:
    text, hint = f'its process exited with code {code}', ''
  else:
    known = signal.Signals(-code) if -code in set(signal.Signals) else None
    text = f'its process was killed by {known.name if known else f"signal {-code}"}'
    hint = _HINTS.get(known, '') if known else ''
  if code == -signal.SIGKILL and out_of_memory:
    hint = 'the system ran out of memory: use fewer --workers, or a smaller model or batch'
  elif _NO_THREAD.search(log):
    hint = describe_thread_limit()
  return f'{text} ({hint})' if hint else text


def describe_error(error: BaseException) -> str:
  """Describes an unexpected exception in one line: type, message, and the limit on threads if that was the cause."""
  text = f'{type(error).__name__}: {error}'.splitlines()[0]
  return f'{text} ({describe_thread_limit()})' if is_thread_limit(error) else text


def is_thread_limit(error: BaseException) -> bool:
  """Whether an exception means that a thread or process could not be started."""
  return bool(_NO_THREAD.search(str(error)))


def describe_thread_limit() -> str:
  """A message that no further thread or process could be started, with the limit."""
  soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
  number = 'unlimited' if soft == resource.RLIM_INFINITY else str(soft)
  return (
    f'no further thread or process could be started: raise the limit (ulimit -u is {number} here, and a container may '
    'have its own), or use fewer --workers'
  )


def count_oom_kills() -> int:
  """The number of processes that the system has killed for lack of memory since it booted; 0 if unknown."""
  try:
    found = re.search(r'^oom_kill (\d+)$', Path('/proc/vmstat').read_text(), re.MULTILINE)
  except OSError:  # not Linux
    return 0
  return int(found[1]) if found else 0
