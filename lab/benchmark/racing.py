"""Races: what is compared takes turns, each in a process of its own, so that a machine whose speed drifts slows all."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.benchmark.serving import ANSWER

PROJECT = Path(__file__).parents[2]
TURN = 0.5  # seconds that a turn should take at least


@dataclasses.dataclass(frozen=True)
class Entry:
  """What takes part.

  Attributes:
    name: of it.
    work: what its processes are told, as JSON; see racer.py and torch_racer.py.
    module: that they run.
    cores: for each process the one core it has; None: all.
    environment: what theirs adds to this one's.
  """

  name: str
  work: Mapping[str, Any]
  module: str = 'lab.benchmark.racer'
  cores: tuple[int | None, ...] = (None,)
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Result:
  """How an entry did.

  Attributes:
    entry: it.
    about: what its first process says of itself.
    seconds: that a step took, in each of its turns; of several processes, which step side by side, the slowest.
    peak_bytes: the most memory that a process had.
  """

  entry: Entry
  about: dict[str, Any]
  seconds: list[float]
  peak_bytes: int

  @property
  def median(self) -> float:
    """Seconds a step."""
    return statistics.median(self.seconds)

  def over(self, other: 'Result') -> float:
    """How many times as long as another one a step takes: the median of the ratios, turn by turn."""
    return statistics.median(own / its for own, its in zip(self.seconds, other.seconds, strict=True))


def race(entries: Sequence[Entry], turns: int) -> list[Result]:
  """Has each take its steps, one entry after the other, so many times; every second time in the opposite order."""
  teams = list[_Team]()
  try:
    for entry in entries:
      teams.append(_Team(entry))
      teams[-1].warm_up()
    for turn in range(turns):
      for team in teams if turn % 2 else reversed(teams):
        team.seconds.append(team.step(team.steps))
    return [Result(team.entry, team.about, team.seconds, team.end()) for team in teams]
  finally:
    for team in teams:
      team.kill()


class _Team:
  """The processes of an entry."""

  def __init__(self, entry: Entry):
    self.entry, self.about, self.seconds, self.steps = entry, dict[str, Any](), list[float](), 1
    path = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get('PYTHONPATH')])])
    self._processes = [
      subprocess.Popen(
        [sys.executable, '-P', '-m', entry.module, json.dumps({**entry.work, 'core': core})],
        env={**os.environ, 'PYTHONPATH': path, **entry.environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
      )
      for core in entry.cores
    ]  # fmt: skip

  def warm_up(self) -> None:
    self.about, *_ = [json.loads(self._answer(process)) for process in self._processes]
    self.step(1)
    self.steps = max(1, round(TURN / self.step(1)))

  def step(self, steps: int) -> float:
    """Has all processes take so many; seconds of one."""
    for process in self._processes:
      assert process.stdin is not None
      process.stdin.write(f'{steps}\n')
    return max(float(self._answer(process)) for process in self._processes) / steps

  def end(self) -> int:
    """Ends the processes; the most bytes that one of them had."""
    for process in self._processes:
      assert process.stdin is not None
      process.stdin.close()
    return max(int(self._answer(process)) for process in self._processes)

  def kill(self) -> None:
    for process in self._processes:
      with process:  # waits for its end, and closes the pipes
        process.kill()

  def _answer(self, process: subprocess.Popen) -> str:
    assert process.stdout is not None
    for line in process.stdout:
      if line.startswith(ANSWER):
        return line.removeprefix(ANSWER)
    raise RuntimeError(f'{self.entry.name} ended with code {process.wait()}: what it said is above')
