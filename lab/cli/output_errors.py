"""Commands continue if stdout or stderr cannot be written: a closed pipe (`| head`), a closed terminal, a full disk."""

import os
import sys
from typing import Any, TextIO, cast


def ignore_output_errors(command: str) -> None:
  """From now on, writing to stdout and stderr never fails. The first error of stdout is reported in one line on stderr.

  Args:
    command: the name of the command, for that line.
  """
  if sys.stdout is not None and not isinstance(sys.stdout, _SafeStream):
    notice = f'{command}: cannot write to stdout (%s): continuing without it'
    sys.stdout = cast(TextIO, _SafeStream(sys.stdout, notice))
  if sys.stderr is not None and not isinstance(sys.stderr, _SafeStream):
    sys.stderr = cast(TextIO, _SafeStream(sys.stderr, None))


class _SafeStream:
  """A text stream that is redirected to /dev/null when a write fails."""

  def __init__(self, stream: TextIO, notice: str | None):
    self._stream, self._notice = stream, notice

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)

  def write(self, text: str) -> int:
    try:
      self._stream.write(text)
    except OSError as error:
      self._redirect(error)
    return len(text)

  def writelines(self, lines) -> None:
    for line in lines:
      self.write(line)

  def flush(self) -> None:
    try:
      self._stream.flush()
    except OSError as error:
      self._redirect(error)

  def _redirect(self, error: OSError) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, self._stream.fileno())  # also receives what is buffered, which Python flushes at exit
    os.close(null)
    if self._notice:
      print(self._notice % (error.strerror or error), file=sys.stderr, flush=True)
