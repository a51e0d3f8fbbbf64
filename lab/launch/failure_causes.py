"""Why a worker ended without a word, or could not start: from its exit code, its log, and what the system counts."""

import re
import resource
import signal
from pathlib import Path

_HINTS = {
  signal.SIGKILL: 'by someone, or by a system that was short of memory',
  signal.SIGXCPU: 'its limit of processor time (ulimit -t) was reached',
  signal.SIGBUS: 'a file it had mapped into memory could not be read, or its disk was full',
  signal.SIGABRT: 'it aborted; its log says why',
  signal.SIGSEGV: 'it crashed',
  signal.SIGILL: 'it crashed: perhaps jaxlib is built for another processor',
}
# As Python, XLA, LLVM and OpenBLAS say it.
_NO_THREAD = re.compile(
  r"can't start new thread|pthread_create|Resource temporarily unavailable|thread constructor failed"
)


def of_exit(code: int, said: str = '', out_of_memory: bool = False) -> str:
  """Why a worker ended, in one line.

  Args:
    code: its exit code; negative: the signal that killed it.
    said: what it wrote to its log since it started.
    out_of_memory: whether the system killed a process for want of memory meanwhile.
  """
  if code >= 0:
    what, hint = f'its process ended with code {code}', ''
  else:
    known = signal.Signals(-code) if -code in set(signal.Signals) else None
    what = f'its process was killed by {known.name if known else f"signal {-code}"}'
    hint = _HINTS.get(known, '') if known else ''
  if code == -signal.SIGKILL and out_of_memory:
    hint = 'the system was out of memory: use fewer --workers, or a smaller model or batch'
  elif _NO_THREAD.search(said):
    hint = thread_limit()
  return f'{what} ({hint})' if hint else what


def of_error(error: BaseException) -> str:
  """What an error that no part of the program expects is called: its type and first line, and a limit that was hit."""
  what = f'{type(error).__name__}: {error}'.splitlines()[0]
  return f'{what} ({thread_limit()})' if is_of_threads(error) else what


def is_of_threads(error: BaseException) -> bool:
  """Whether an error comes of a thread or process that could not be started."""
  return bool(_NO_THREAD.search(str(error)))


def thread_limit() -> str:
  """That no further process or thread could be started, and which limits decide."""
  soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
  number = 'unlimited' if soft == resource.RLIM_INFINITY else str(soft)
  return (
    f'no further thread or process could be started: raise the limit on them (ulimit -u is {number} here, and a '
    'container may have its own), or use fewer --workers'
  )


def times_out_of_memory() -> int:
  """How many processes the system has killed for want of memory since it started; 0 where it does not say."""
  try:
    found = re.search(r'^oom_kill (\d+)$', Path('/proc/vmstat').read_text(), re.MULTILINE)
  except OSError:  # not Linux
    return 0
  return int(found[1]) if found else 0
