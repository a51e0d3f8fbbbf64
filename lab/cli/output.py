"""Output that nobody reads any more is no reason to stop: `| head`, a closed terminal, a log on a full disk."""

import os
import sys
from typing import Any, TextIO, cast


def outlive_readers(name: str) -> None:
  """From now on writing to stdout and stderr never fails. Once stdout cannot be written, one line on stderr says so.

  Args:
    name: of the command, for that line.
  """
  if sys.stdout is not None and not isinstance(sys.stdout, _Lasting):
    sys.stdout = cast(TextIO, _Lasting(sys.stdout, f'{name}: stdout cannot be written to (%s): continuing without it'))
  if sys.stderr is not None and not isinstance(sys.stderr, _Lasting):
    sys.stderr = cast(TextIO, _Lasting(sys.stderr, None))


class _Lasting:
  """A text stream that writes to nowhere from the moment when it fails."""

  def __init__(self, stream: TextIO, notice: str | None):
    self._stream, self._notice = stream, notice

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)

  def write(self, text: str) -> int:
    try:
      self._stream.write(text)
    except OSError as error:
      self._lose(error)
    return len(text)

  def writelines(self, lines) -> None:
    for line in lines:
      self.write(line)

  def flush(self) -> None:
    try:
      self._stream.flush()
    except OSError as error:
      self._lose(error)

  def _lose(self, error: OSError) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, self._stream.fileno())  # also for what is buffered, which Python would write at its end
    os.close(nowhere)
    if self._notice:
      print(self._notice % (error.strerror or error), file=sys.stderr, flush=True)
