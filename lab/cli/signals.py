"""What SIGINT, SIGTERM and SIGHUP do: the command ends in order, with a code that says "run me again"."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

STOPPED = os.EX_TEMPFAIL  # 75: what is saved is whole, and the same command resumes from it
INTERRUPTED = 130  # a second SIGINT: at once, from the last checkpoint
_SAID = 'train.py: stopped; the same command resumes from what is saved'
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a scheduler, a terminal that was closed


def caught() -> list[signal.Signals]:
  """The signals that stop a command in order: without SIGHUP where it is ignored, as under nohup."""
  return [number for number in _SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


def leave_at_once(command: str) -> None:
  """From now on these signals end this process in one line: no exception, which an import may turn into another.

  Args:
    command: the name of the script. One other than train.py, where nothing resumes, has its own way but with SIGINT.
  """
  resumes = command == 'train.py'
  said, code = (_SAID, STOPPED) if resumes else (f'{command}: stopped', INTERRUPTED)

  def leave(number: int, frame: object) -> None:
    del number, frame
    with contextlib.suppress(OSError):  # the terminal may be gone
      os.write(2, f'{said}\n'.encode())
    os._exit(code)

  for number in caught() if resumes else [signal.SIGINT]:
    if resumes or signal.getsignal(number) == signal.default_int_handler:  # it may be ignored
      signal.signal(number, leave)


def leave_when_told() -> None:
  """From now on these signals end this process where it stands, in one line. For a script alone."""
  for number in caught():
    signal.signal(number, _leave)


def interrupt_when_told() -> None:
  """From now on SIGINT is a KeyboardInterrupt, unless it is ignored."""
  if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
  """Afterwards the signals do what they did before."""
  earlier = {number: signal.getsignal(number) for number in caught()}
  try:
    yield
  finally:
    for number, handler in earlier.items():
      signal.signal(number, handler)


@contextlib.contextmanager
def sigint_kept_from_children() -> Iterator[None]:
  """A process started inside never sees SIGINT, which a terminal sends to all: its parent tells it what to do."""
  earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _leave(number: int, frame: object) -> None:
  del number, frame
  print(_SAID, file=sys.stderr)
  raise SystemExit(STOPPED)
