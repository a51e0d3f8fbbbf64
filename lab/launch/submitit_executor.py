"""Submits array jobs through submitit (1.5.4). The only module that depends on submitit's private API.

It depends on the methods that build the batch script, on `map_count`, on the default wckey, and on the call of
`affinity`, which requires sbatch to be installed.
"""

import contextlib
import io
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab.core.run import Run
from lab.launch.slurm_flags import SAVE_TIME, Resources
from training.code_version import PROJECT
from training.config import ConfigError

if TYPE_CHECKING:
  import submitit

MAX_REQUEUES = 100  # times that a task may be requeued at its time limit


def create_executor(resources: Resources, folder: Path, job_name: str) -> 'submitit.SlurmExecutor':
  """The executor that submits an array job.

  Args:
    resources: the resources of each task.
    folder: the folder for submitit's own files.
    job_name: the name of the job.
  """
  import submitit

  class Executor(submitit.SlurmExecutor):
    """An executor that can build its script on a machine without Slurm."""

    @classmethod
    def affinity(cls) -> int:
      return 2

  executor = Executor(folder, MAX_REQUEUES, python=f'{shlex.quote(sys.executable)} -P')
  # srun does not inherit the number of cores from sbatch.
  cores = {} if resources.cpus is None else {'srun_args': [f'--cpus-per-task={resources.cpus}']}
  executor.update_parameters(
    job_name=job_name,
    time=resources.minutes,
    partition=resources.partition,
    gpus_per_node=resources.gpus,
    cpus_per_task=resources.cpus,
    mem=resources.memory,
    account=resources.account,
    wckey=None,  # submitit's default is rejected by clusters that check it
    signal_delay_s=SAVE_TIME,
    additional_parameters={'requeue': True},
    setup=[f'export PYTHONPATH={shlex.quote(str(PROJECT))}${{PYTHONPATH:+:$PYTHONPATH}}'],
    **cores,
  )
  return executor


def submit_array(executor: 'submitit.Executor', task: Callable[[Run], None], runs: Sequence[Run]) -> list[str]:
  """Submits one task per run, as one array job.

  Returns:
    The job id of each run, such as 12_0.

  Raises:
    ConfigError: if Slurm rejects the job, with its message.
  """
  from submitit.core.utils import FailedJobError

  try:
    with contextlib.redirect_stderr(io.StringIO()):  # submitit also prints the message that it raises
      jobs = executor.map_array(task, runs)
  except FailedJobError as error:
    raise ConfigError(f'Slurm rejected the job: {error}') from None
  return [job.job_id for job in jobs]


def batch_script(executor: 'submitit.SlurmExecutor', runs: int) -> str:
  """The script that would be submitted with sbatch for a number of runs."""
  if runs > 1:
    executor.parameters['map_count'] = runs  # as submitit does
  return executor._make_submission_file_text(executor._submitit_command_str, '')
