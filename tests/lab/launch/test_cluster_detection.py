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

# The variables that Slurm sets, according to its manual, for a task of `srun -N3 -n3`.
STEP = {
  'SLURM_JOB_ID': '4097', 'SLURM_STEP_ID': '0', 'SLURM_STEP_NODELIST': 'node[07-09]', 'SLURM_STEP_NUM_TASKS': '3',
  'SLURM_STEP_NUM_NODES': '3', 'SLURM_NTASKS': '3', 'SLURM_PROCID': '2', 'SLURM_LOCALID': '0',
}  # fmt: skip
OPEN_MPI = {
  'OMPI_MCA_orte_hnp_uri': '1531576320.0;tcp://10.96.0.1,10.148.0.1:34911', 'OMPI_COMM_WORLD_SIZE': '3',
  'OMPI_COMM_WORLD_RANK': '2', 'OMPI_COMM_WORLD_LOCAL_RANK': '0',
}  # fmt: skip
INTERACTIVE = str(2**32 - 6)  # the step numbers that Slurm reserves, by their names in its source
BATCH = str(2**32 - 5)
EXTERN = str(2**32 - 4)
ORDINARY_JOB = {name: STEP[name] for name in ('SLURM_JOB_ID', 'SLURM_PROCID', 'SLURM_LOCALID')} | {'SLURM_NTASKS': '4'}


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
  """Hides the terminal and the scheduler in which the tests themselves run."""
  for name in os.environ:
    if name.startswith(('SLURM', 'OMPI', 'PMI', 'TPU_', 'JAX_COORDINATOR')):
      monkeypatch.delenv(name)
  monkeypatch.setattr('sys.stdin', None)


def detect_with(monkeypatch, environment):
  with monkeypatch.context() as patch:
    for name, value in environment.items():
      patch.setenv(name, value)
    return detect_process_group()


def test_the_private_classes_are_those_of_this_version_of_jax():
  """For a newer JAX: check jax/_src/clusters, then update the version here and in lab/launch/cluster_detection.py."""
  assert jax.__version__ == '0.10.2'
  assert jax.__version__ in cluster_detection.__doc__
  assert {env.name for env in ClusterEnv._cluster_types} >= {'ompi', 'slurm', 'gcetpu', 'gketpu'}


@pytest.mark.parametrize(('environment', 'host'), [(STEP, 'node07'), (OPEN_MPI, '10.96.0.1')])
def test_the_process_group_of_a_scheduler_is_detected(environment, host, monkeypatch):
  group = detect_with(monkeypatch, environment)
  assert re.fullmatch(rf'{host}:\d+', group.coordinator)
  assert (group.count, group.index, group.local_index) == (3, 2, 0)


@pytest.mark.parametrize(
  'environment',
  [
    {},
    # A shell of `salloc -n4`: in an interactive step, which keeps the job's number of tasks, or on the login node.
    STEP | {'SLURM_STEP_ID': INTERACTIVE, 'SLURM_STEP_NUM_TASKS': '1', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'},
    STEP | {'SLURM_STEP_ID': INTERACTIVE, 'SLURM_STEP_NUM_TASKS': '4', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'},
    {'SLURM_JOB_ID': '4097', 'SLURM_NTASKS': '4', 'SLURM_JOB_NODELIST': 'node07'},
    # A batch script of `sbatch -n4`, without srun; some versions of Slurm set variables of its step.
    ORDINARY_JOB,
    ORDINARY_JOB | {'SLURM_STEP_ID': BATCH, 'SLURM_STEP_NODELIST': 'node07', 'SLURM_STEP_NUM_TASKS': '4'},
    ORDINARY_JOB | {'SLURM_STEP_NODELIST': 'node07'},
    STEP | {'SLURM_STEP_ID': EXTERN},
    # `srun -n1` in a job of four tasks, also with --preserve-env; `srun --pty bash`; a task of an array.
    STEP | {'SLURM_STEP_NUM_TASKS': '1', 'SLURM_NTASKS': '1', 'SLURM_PROCID': '0'},
    STEP | {'SLURM_STEP_NUM_TASKS': '1', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'},
    ORDINARY_JOB | {'SLURM_ARRAY_JOB_ID': '4090', 'SLURM_ARRAY_TASK_ID': '7', 'SLURM_ARRAY_TASK_COUNT': '9'},
    OPEN_MPI | {'OMPI_COMM_WORLD_SIZE': '1', 'OMPI_COMM_WORLD_RANK': '0'},
    {'PMI_SIZE': '1', 'PMI_RANK': '0'},
    {'PMI_SIZE': '', 'PMI_RANK': ''},
  ],
)
def test_a_command_that_was_started_once_is_a_single_process(environment, monkeypatch):
  assert detect_with(monkeypatch, environment) is None


def test_the_process_count_is_the_number_of_tasks_in_the_step(monkeypatch):
  """The job has four tasks and the step three; a launcher may pass on the variables of the job."""
  assert detect_with(monkeypatch, STEP | {'SLURM_NTASKS': '4'}).count == 3


def test_variables_inherited_from_another_step_are_ignored(monkeypatch):
  """This happens in tmux, whose server was started in the step but is no longer a descendant of its task."""
  monkeypatch.setattr(cluster_detection, '_in_host_pid_namespace', lambda: True)
  with subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
    stale = STEP | {'SLURM_TASK_PID': str(other.pid)}
    assert detect_with(monkeypatch, stale) is None
    monkeypatch.setattr(
      cluster_detection, '_in_host_pid_namespace', lambda: False
    )  # in a container with its own namespace
    assert detect_with(monkeypatch, stale).count == 3
  monkeypatch.setattr(cluster_detection, '_in_host_pid_namespace', lambda: True)
  for ancestor in (os.getpid(), os.getppid()):
    assert detect_with(monkeypatch, STEP | {'SLURM_TASK_PID': str(ancestor)}).count == 3


def test_a_command_typed_in_a_terminal_is_a_single_process(monkeypatch):
  _, terminal = os.openpty()
  with os.fdopen(terminal) as stdin:
    monkeypatch.setattr('sys.stdin', stdin)
    assert detect_with(monkeypatch, STEP) is None


def test_the_coordinator_port_differs_between_jobs_and_steps(monkeypatch):
  one, other, another_job = (
    detect_with(monkeypatch, STEP | more).coordinator for more in ({}, {'SLURM_STEP_ID': '1'}, {'SLURM_JOB_ID': '4098'})
  )
  assert len({one, other, another_job}) == 3
  assert detect_with(monkeypatch, STEP | {'JAX_COORDINATOR_PORT': '1234'}).coordinator == 'node07:1234'


@pytest.mark.parametrize(
  ('environment', 'message'),
  [
    ({'OMPI_COMM_WORLD_SIZE': '4', 'OMPI_COMM_WORLD_RANK': '1'}, r'^4 processes.*--process_id=\$OMPI_COMM_WORLD_RANK'),
    ({'PMI_SIZE': '4', 'PMI_RANK': '1'}, r'^4 processes were .*--num_processes=4 --process_id=\$PMI_RANK$'),
    (STEP | {'PMI_SIZE': '12', 'PMI_RANK': '5'}, r'12 processes were started \(PMI_SIZE=12\)'),  # mpiexec inside srun
    (OPEN_MPI | {'OMPI_COMM_WORLD_SIZE': 'x'}, 'cannot detect which processes run together'),
    (STEP | {'SLURM_PROCID': ''}, 'cannot detect which processes run together'),
  ],
)
def test_an_unknown_coordinator_is_rejected_with_the_flags_to_add(environment, message, monkeypatch):
  with pytest.raises(ConfigError, match=message):
    detect_with(monkeypatch, environment)
  if 'PMI_SIZE' in environment and 'SLURM_STEP_ID' in environment:
    assert detect_with(monkeypatch, environment | {'PMI_SIZE': '3'}).count == 3  # srun --mpi=pmi2 sets the same number
