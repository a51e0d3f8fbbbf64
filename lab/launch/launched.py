"""The type of a launcher, and what it returns."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console

from lab.core.run import Run


class Launched(NamedTuple):
  """What became of the runs: those that failed, and what to exit with if others are left unfinished, else None."""

  failed: list[Run]
  code: int | None


Launcher = Callable[[Sequence[Run], Sequence[Run], Console], Launched]  # of the runs, the unfinished among them, ...
