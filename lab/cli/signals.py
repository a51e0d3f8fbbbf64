"""How commands respond to SIGINT, SIGTERM and SIGHUP: they exit cleanly, with a code that means "run it again"."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

STOPPED = os.EX_TEMPFAIL  # 75: everything is saved, and the same command resumes
INTERRUPTED = 130  # by a second SIGINT: exits immediately; the same command resumes from the last checkpoint
_MESSAGE = 'train.py: stopped; run the same command again to resume'
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # from Ctrl-C, a scheduler, a closed terminal


def stop_signals() -> list[signal.Signals]:
  """Returns the signals that stop a command; without SIGHUP if it is ignored, as under nohup."""
  return [number for number in _SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


def exit_immediately_on_signals(command: str) -> None:
  """From now on, these signals end the process with one line, and not by an exception, which an import could catch.

  Args:
    command: the name of the script. For scripts other than train.py, which do not resume, only SIGINT is handled.
  """
  resumes = command == 'train.py'
  message, code = (_MESSAGE, STOPPED) if resumes else (f'{command}: stopped', INTERRUPTED)

  def exit_now(number: int, frame: object) -> None:
    del number, frame
    with contextlib.suppress(OSError):  # the terminal may be closed
      os.write(2, f'{message}\n'.encode())
    os._exit(code)

  for number in stop_signals() if resumes else [signal.SIGINT]:
    if resumes or signal.getsignal(number) == signal.default_int_handler:  # it may be ignored
      signal.signal(number, exit_now)


def exit_on_signals() -> None:
  """From now on, these signals raise SystemExit with code 75, after one line. For scripts only."""
  for number in stop_signals():
    signal.signal(number, _exit)


def interrupt_on_sigint() -> None:
  """From now on, SIGINT raises KeyboardInterrupt, unless it is ignored."""
  if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def restored_handlers() -> Iterator[None]:
  """Restores the handlers of these signals at exit."""
  earlier = {number: signal.getsignal(number) for number in stop_signals()}
  try:
    yield
  finally:
    for number, handler in earlier.items():
      signal.signal(number, handler)


@contextlib.contextmanager
def sigint_blocked_for_children() -> Iterator[None]:
  """Blocks SIGINT in processes that are started within: a terminal sends it to all, but only the parent handles it."""
  earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _exit(number: int, frame: object) -> None:
  del number, frame
  print(_MESSAGE, file=sys.stderr)
  raise SystemExit(STOPPED)
