"""Alternating trials: the programs to compare run in turn, each in its own processes, so drift affects all equally."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.benchmark.worker_protocol import PREFIX

PROJECT = Path(__file__).parents[2]
MIN_TRIAL_SECONDS = 0.5  # sets the number of iterations in a trial


@dataclasses.dataclass(frozen=True)
class Case:
  """One of the programs to compare.

  Attributes:
    name: its name in the table.
    task: the task of its workers, as JSON; see jax_worker.py and torch_worker.py.
    module: the module that its workers run.
    cores: the only core of each worker, or None for all cores; several workers run at the same time.
    environment: variables to add to the environment of its workers.
  """

  name: str
  task: Mapping[str, Any]
  module: str = 'lab.benchmark.jax_worker'
  cores: tuple[int | None, ...] = (None,)
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Result:
  """The measurements of a case.

  Attributes:
    case: the case that was measured.
    facts: the facts that its first worker reports about the program: compile time, memory, parameters.
    seconds: the duration of one iteration in each trial; that of the slowest if there are several workers.
    peak_bytes: the largest peak memory of a worker.
  """

  case: Case
  facts: dict[str, Any]
  seconds: list[float]
  peak_bytes: int

  @property
  def median(self) -> float:
    """Median seconds of an iteration over the trials."""
    return statistics.median(self.seconds)

  def ratios(self, reference: 'Result') -> list[float]:
    """Seconds of an iteration relative to a reference, in each trial."""
    return [own / other for own, other in zip(self.seconds, reference.seconds, strict=True)]

  def ratio(self, reference: 'Result') -> float:
    """The median of `ratios`."""
    return statistics.median(self.ratios(reference))


def run_trials(cases: Sequence[Case], trials: int, iterations: int | None = None) -> list[Result]:
  """Measures every case once in each trial; every second trial runs them in reverse order.

  Args:
    cases: the programs to compare.
    trials: the number of trials; 0 only compiles the programs and runs them twice.
    iterations: the iterations of each case in a trial; None: as many as take MIN_TRIAL_SECONDS.
  """
  groups = list[_Workers]()
  try:
    for case in cases:
      groups.append(_Workers(case))
      groups[-1].warm_up(iterations)
    for trial in range(trials):
      for group in groups if trial % 2 else reversed(groups):
        group.seconds.append(group.run(group.iterations))
    return [Result(group.case, group.facts, group.seconds, group.finish()) for group in groups]
  finally:
    for group in groups:
      group.kill()


class _Workers:
  """The worker processes of a case."""

  def __init__(self, case: Case):
    self.case, self.facts, self.seconds, self.iterations = case, dict[str, Any](), list[float](), 1
    path = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get('PYTHONPATH')])])
    self._processes = [
      subprocess.Popen(
        [sys.executable, '-P', '-m', case.module, json.dumps({**case.task, 'core': core})],
        env={**os.environ, 'PYTHONPATH': path, **case.environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
      )
      for core in case.cores
    ]  # fmt: skip

  def warm_up(self, iterations: int | None) -> None:
    self.facts, *_ = [json.loads(self._read_answer(process)) for process in self._processes]
    self.run(1)
    seconds = self.run(1)
    self.iterations = iterations or max(1, round(MIN_TRIAL_SECONDS / seconds))

  def run(self, iterations: int) -> float:
    """Runs this many iterations in all workers at once; returns the seconds of one iteration."""
    for process in self._processes:
      assert process.stdin is not None
      process.stdin.write(f'{iterations}\n')
    return max(float(self._read_answer(process)) for process in self._processes) / iterations

  def finish(self) -> int:
    """Stops the workers; returns the largest peak memory in bytes."""
    for process in self._processes:
      assert process.stdin is not None
      process.stdin.close()
    return max(int(self._read_answer(process)) for process in self._processes)

  def kill(self) -> None:
    for process in self._processes:
      with process:  # waits until it has exited, and closes the pipes
        process.kill()

  def _read_answer(self, process: subprocess.Popen) -> str:
    assert process.stdout is not None
    for line in process.stdout:
      if line.startswith(PREFIX):
        return line.removeprefix(PREFIX)
    raise RuntimeError(f'the worker of {self.case.name} exited with code {process.wait()}; its error is above')
