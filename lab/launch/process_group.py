"""ProcessGroup: the processes that train one run together."""

import dataclasses

JOIN_TIMEOUT = 120  # seconds for all processes of a group to start


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
  """The processes that train one run together, as seen from one of them.

  Attributes:
    coordinator: host:port on which process 0 listens.
    count: the number of processes.
    index: the index of this process, from 0.
    local_index: its index on its host, if the scheduler assigns one GPU there to each process; otherwise None.
  """

  coordinator: str
  count: int
  index: int
  local_index: int | None = None

  @property
  def flags(self) -> list[str]:
    """The flags that pass the group to a worker."""
    return [f'--coordinator={self.coordinator}', f'--num_processes={self.count}', f'--process_id={self.index}']

  @property
  def log_name(self) -> str:
    """The name of this process's log file in the run directory."""
    return f'log_{self.index}.txt' if self.index else 'log.txt'


SINGLE_PROCESS = ProcessGroup('', 1, 0)
