import os
import re
import subprocess
import sys

import jax
import pytest
from jax._src.clusters import ClusterEnv

from lab.launch import cluster_detection
from lab.launch.cluster_detection import detect_process_group
from training.config import ConfigError

# The variables that Slurm's manual gives for a task of `srun -N3 -n3`, in a job of four tasks.
STEP = {
  'SLURM_JOB_ID': '4097', 'SLURM_STEP_ID': '0', 'SLURM_STEP_NODELIST': 'node[07-09]', 'SLURM_STEP_NUM_TASKS': '3',
  'SLURM_STEP_NUM_NODES': '3', 'SLURM_NTASKS': '3', 'SLURM_PROCID': '2', 'SLURM_LOCALID': '0',
}  # fmt: skip
OPEN_MPI = {
  'OMPI_MCA_orte_hnp_uri': '1531576320.0;tcp://10.96.0.1,10.148.0.1:34911', 'OMPI_COMM_WORLD_SIZE': '3',
  'OMPI_COMM_WORLD_RANK': '2', 'OMPI_COMM_WORLD_LOCAL_RANK': '0',
}  # fmt: skip
INTERACTIVE = str(2**32 - 6)  # SLURM_INTERACTIVE_STEP
BATCH = str(2**32 - 5)
EXTERN = str(2**32 - 4)
ORDINARY_JOB = {name: STEP[name] for name in ('SLURM_JOB_ID', 'SLURM_PROCID', 'SLURM_LOCALID')} | {'SLURM_NTASKS': '4'}


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
  """Nor any variable of a scheduler's that the tests themselves run under."""
  for name in os.environ:
    if name.startswith(('SLURM', 'OMPI', 'PMI', 'TPU_', 'JAX_COORDINATOR')):
      monkeypatch.delenv(name)
  monkeypatch.setattr('sys.stdin', None)


def started_with(monkeypatch, environment):
  with monkeypatch.context() as patch:
    for name, value in environment.items():
      patch.setenv(name, value)
    return detect_process_group()


def test_jax_finds_its_clusters_as_it_did_when_this_was_written():
  """A newer JAX: read jax/_src/clusters again, then name its version here and in lab/launch/cluster_detection.py."""
  assert jax.__version__ == '0.10.2'
  assert jax.__version__ in cluster_detection.__doc__
  assert {env.name for env in ClusterEnv._cluster_types} >= {'ompi', 'slurm', 'gcetpu', 'gketpu'}


@pytest.mark.parametrize(('environment', 'host'), [(STEP, 'node07'), (OPEN_MPI, '10.96.0.1')])
def test_a_scheduler_says_who_they_are(environment, host, monkeypatch):
  found = started_with(monkeypatch, environment)
  assert re.fullmatch(rf'{host}:\d+', found.coordinator)
  assert (found.count, found.index, found.local_index) == (3, 2, 0)


@pytest.mark.parametrize(
  'environment',
  [
    {},
    # A shell of `salloc -n4`: with an interactive step, which keeps the job's number, or on the login node.
    STEP | {'SLURM_STEP_ID': INTERACTIVE, 'SLURM_STEP_NUM_TASKS': '1', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'},
    STEP | {'SLURM_STEP_ID': INTERACTIVE, 'SLURM_STEP_NUM_TASKS': '4', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'},
    {'SLURM_JOB_ID': '4097', 'SLURM_NTASKS': '4', 'SLURM_JOB_NODELIST': 'node07'},
    # A batch script of `sbatch -n4`, without srun; what some versions set of its step.
    ORDINARY_JOB,
    ORDINARY_JOB | {'SLURM_STEP_ID': BATCH, 'SLURM_STEP_NODELIST': 'node07', 'SLURM_STEP_NUM_TASKS': '4'},
    ORDINARY_JOB | {'SLURM_STEP_NODELIST': 'node07'},
    STEP | {'SLURM_STEP_ID': EXTERN},
    # `srun -n1` in a job of four, also with --preserve-env; `srun --pty bash`; a task of an array.
    STEP | {'SLURM_STEP_NUM_TASKS': '1', 'SLURM_NTASKS': '1', 'SLURM_PROCID': '0'},
    STEP | {'SLURM_STEP_NUM_TASKS': '1', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'},
    ORDINARY_JOB | {'SLURM_ARRAY_JOB_ID': '4090', 'SLURM_ARRAY_TASK_ID': '7', 'SLURM_ARRAY_TASK_COUNT': '9'},
    OPEN_MPI | {'OMPI_COMM_WORLD_SIZE': '1', 'OMPI_COMM_WORLD_RANK': '0'},
    {'PMI_SIZE': '1', 'PMI_RANK': '0'},
    {'PMI_SIZE': '', 'PMI_RANK': ''},
  ],
)
def test_a_command_that_was_started_once_is_alone(environment, monkeypatch):
  assert started_with(monkeypatch, environment) is None


def test_the_steps_own_number_decides(monkeypatch):
  """Of the job's tasks four, of the step's three: as where a launcher has kept the job's variables."""
  assert started_with(monkeypatch, STEP | {'SLURM_NTASKS': '4'}).count == 3


def test_variables_of_a_step_that_this_process_is_not_in_are_not_its_own(monkeypatch):
  """As in tmux: the server was started in the step, and is the child of no task any more."""
  monkeypatch.setattr(cluster_detection, '_in_host_pid_namespace', lambda: True)
  with subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
    stale = STEP | {'SLURM_TASK_PID': str(other.pid)}
    assert started_with(monkeypatch, stale) is None
    monkeypatch.setattr(cluster_detection, '_in_host_pid_namespace', lambda: False)  # in a container that has its own
    assert started_with(monkeypatch, stale).count == 3
  monkeypatch.setattr(cluster_detection, '_in_host_pid_namespace', lambda: True)
  for own in (os.getpid(), os.getppid()):
    assert started_with(monkeypatch, STEP | {'SLURM_TASK_PID': str(own)}).count == 3


def test_what_is_typed_at_a_terminal_was_started_once(monkeypatch):
  _, terminal = os.openpty()
  with os.fdopen(terminal) as stdin:
    monkeypatch.setattr('sys.stdin', stdin)
    assert started_with(monkeypatch, STEP) is None


def test_two_steps_of_one_job_meet_at_two_ports(monkeypatch):
  one, other, another_job = (
    started_with(monkeypatch, STEP | more).coordinator
    for more in ({}, {'SLURM_STEP_ID': '1'}, {'SLURM_JOB_ID': '4098'})
  )
  assert len({one, other, another_job}) == 3
  assert started_with(monkeypatch, STEP | {'JAX_COORDINATOR_PORT': '1234'}).coordinator == 'node07:1234'


@pytest.mark.parametrize(
  ('environment', 'message'),
  [
    ({'OMPI_COMM_WORLD_SIZE': '4', 'OMPI_COMM_WORLD_RANK': '1'}, r'^4 processes.*--process_id=\$OMPI_COMM_WORLD_RANK'),
    ({'PMI_SIZE': '4', 'PMI_RANK': '1'}, r'^4 processes were .*--num_processes=4 --process_id=\$PMI_RANK$'),
    (STEP | {'PMI_SIZE': '12', 'PMI_RANK': '5'}, r'12 processes were started \(PMI_SIZE=12\)'),  # mpiexec, by srun
    (OPEN_MPI | {'OMPI_COMM_WORLD_SIZE': 'x'}, 'cannot detect which processes run together'),
    (STEP | {'SLURM_PROCID': ''}, 'cannot detect which processes run together'),
  ],
)
def test_processes_that_do_not_know_where_to_meet_are_told_what_to_say(environment, message, monkeypatch):
  with pytest.raises(ConfigError, match=message):
    started_with(monkeypatch, environment)
  if 'PMI_SIZE' in environment and 'SLURM_STEP_ID' in environment:
    assert started_with(monkeypatch, environment | {'PMI_SIZE': '3'}).count == 3  # srun --mpi=pmi2 counts the same
