import re

import pytest

from experiments import processes
from experiments.processes import ALONE, Processes, verdict

# What jaxlib writes as it aborts a process, but for the stack.
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
OUT_OF_STEP = (
  "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc:459] "
  "op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size."
)
NOT_ALL = (
  'absl::Status: DEADLINE_EXCEEDED: Deadline Exceeded\n\nRPC: /xla.coordination.CoordinationService/RegisterTask'
)


@pytest.mark.parametrize(
  ('log', 'told'),
  [
    (HEARTBEAT, 'process 1 of 4 was lost; the same commands again'),
    (TWO, 'process 1, 3 of 4 was lost; the same commands again'),
    (COORDINATOR, 'process 0 of 4 was lost; the same commands again'),
    (OUT_OF_STEP, 'one of the 4 processes was lost; the same commands again'),
    (NOT_ALL, 'not all of the 4 processes came within 120 s'),
    ('Traceback\nMemoryError', None),
  ],
)
def test_an_abort_of_the_runtime_becomes_one_line(log, told, tmp_path):
  path, earlier = tmp_path / 'log.txt', TWO + '\n'
  path.write_text(earlier + log)
  found = verdict(path, len(earlier), Processes('node:1', 4, 2))
  assert found is None if told is None else found.startswith(told)
  assert verdict(tmp_path / 'none.txt', 0, Processes('node:1', 4, 2)) is None


SLURM = {
  'SLURM_JOB_ID': '4097', 'SLURM_STEP_NODELIST': 'node[07-09]', 'SLURM_NTASKS': '3', 'SLURM_PROCID': '2',
  'SLURM_LOCALID': '0', 'SLURM_STEP_NUM_NODES': '3',
}  # fmt: skip
OPEN_MPI = {
  'OMPI_MCA_orte_hnp_uri': '1531576320.0;tcp://10.96.0.1,10.148.0.1:34911', 'OMPI_COMM_WORLD_SIZE': '3',
  'OMPI_COMM_WORLD_RANK': '2', 'OMPI_COMM_WORLD_LOCAL_RANK': '0',
}  # fmt: skip


@pytest.mark.parametrize(('environment', 'host'), [(SLURM, 'node07'), (OPEN_MPI, '10.96.0.1')])
def test_a_scheduler_says_who_they_are(environment, host, monkeypatch):
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  found = processes._by_scheduler()
  assert re.fullmatch(rf'{host}:\d+', found.coordinator)
  assert (found.count, found.index, found.one_device) == (3, 2, True)
  monkeypatch.setenv('SLURM_NTASKS', '1')  # a job of its own, as of an array
  monkeypatch.setenv('OMPI_COMM_WORLD_SIZE', '1')
  assert processes._by_scheduler() is ALONE
