import jax
import jaxlib
import pytest

from lab.launch import runtime_aborts
from lab.launch.process_group import ProcessGroup
from lab.launch.runtime_aborts import describe_abort

# What jaxlib logs when it aborts a process, without the stack.
HEARTBEAT = (
  'F1130 04:14:36.523214 client.h:80] Terminating process because the JAX distributed service detected fatal errors. '
  'absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n1\nThe tasks have '
  'crashed.'
)
TWO = HEARTBEAT.replace('\n1\n', '\n1\n3\n')
COORDINATOR = (
  'absl::Status: UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was preempted/died/'
  'restarted unexpectedly or this task is experiencing network issues. Check earlier logs from 1) this task'
)
COLLECTIVE_MISMATCH = (
  "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc:459] "
  "op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size."
)
NOT_ALL_JOINED = (
  'absl::Status: DEADLINE_EXCEEDED: Deadline Exceeded\n\nRPC: /xla.coordination.CoordinationService/RegisterTask'
)
AGAIN = 'run the same commands again to resume from the last checkpoint'


def test_the_messages_are_those_of_this_version_of_jaxlib():
  """For a newer jaxlib: kill a process in tests/training/test_many_processes.py, check its log, update the version."""
  assert jax.__version__ == jaxlib.__version__ == '0.10.2'
  assert jaxlib.__version__ in runtime_aborts.__doc__


@pytest.mark.parametrize(
  ('log', 'message'),
  [
    (HEARTBEAT, f'lost process 1 of 4; {AGAIN}'),
    (TWO, f'lost processes 1, 3 of 4; {AGAIN}'),
    (COORDINATOR, f'lost process 0 of 4; {AGAIN}'),
    (COLLECTIVE_MISMATCH, f'lost one of the 4 processes; {AGAIN}'),
    (NOT_ALL_JOINED, 'not all 4 processes joined within 120 s'),
    ('Traceback\nMemoryError', None),
  ],
)
def test_an_abort_of_the_runtime_is_described_in_one_line(log, message, tmp_path):
  path, earlier = tmp_path / 'log.txt', TWO + '\n'
  path.write_text(earlier + log)
  group = ProcessGroup('node:1', 4, 2)
  assert describe_abort(path, len(earlier), group) == message
  assert describe_abort(tmp_path / 'none.txt', 0, group) is None
