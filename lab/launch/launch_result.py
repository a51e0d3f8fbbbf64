"""The interface of launchers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console

from lab.core.run import Run


class LaunchResult(NamedTuple):
  """How a launch ended.

  Attributes:
    failed: the runs that failed.
    exit_code: the exit code of the command if it ends here, without a report: after a dry run or a submission, when
      stopped, or in all but the first process of a group; None otherwise.
  """

  failed: list[Run]
  exit_code: int | None


Launcher = Callable[[Sequence[Run], Sequence[Run], Console], LaunchResult]  # all runs, the unfinished ones, the console
