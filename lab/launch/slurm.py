"""Submits runs as one Slurm array job, with one task per run.

Slurm sends SIGUSR2 to a job shortly before its time limit and, if the cluster is configured so, before preempting it:
the run saves a checkpoint, its task is requeued, and the run resumes when the task starts again. The tasks of a failed
node are requeued by Slurm itself, and their runs resume from their last checkpoints.
"""

import dataclasses
import datetime
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from lab.cli.command_line import new_console
from lab.core.run import Run
from lab.launch import device_report, devices, submitit_executor, worker_pool
from lab.launch.progress import ProgressDisplay
from lab.launch.slurm_flags import Resources
from training.config import ConfigError
from training.files import Damaged, read_json, write_sealed
from training.paths import is_one_line, printable
from training.run_files.run_directory import FAILURE, is_finished, workdir_of

if TYPE_CHECKING:
  import submitit

SQUEUE_TIMEOUT = 120  # seconds
SAVE_WITHIN = 60.0  # seconds; the rest of slurm_flags.SAVE_TIME is for requeueing
JOB_FILE = 'slurm.json'  # in a run directory: the last Slurm job of the run
JOB_ID = re.compile(r'\d+(_\d+)?')


def submit(resources: Resources, runs: Sequence[Run], console: Console) -> int:
  """Submits the runs that are not in the queue, as one array job, and returns the exit code.

  Raises:
    ConfigError: if Slurm rejects the job, with its message; no files are left behind.
  """
  queued = _queued_jobs()
  for run in runs:
    if (run.directory / JOB_FILE).exists() and read_job_id(run.directory) is None:
      console.print(f'{run.directory / JOB_FILE} is damaged: submitting its run again', markup=False, soft_wrap=True)
  runs = [run for run in runs if read_job_id(run.directory) not in queued]
  if runs:
    folder = _submission_folder(runs)
    outermost_new = [path for path in (folder, *folder.parents) if not path.exists()][-1]
    absolute = [dataclasses.replace(run, directory=run.directory.absolute()) for run in runs]
    try:
      executor = submitit_executor.create_executor(resources, folder, _job_name(runs))
      job_ids = submitit_executor.submit_array(executor, Task(), absolute)
    except ConfigError:
      shutil.rmtree(outermost_new)
      raise
    for run, job_id in zip(runs, job_ids, strict=True):
      write_sealed(run.directory / JOB_FILE, {'job': job_id})
      (run.directory / FAILURE).unlink(missing_ok=True)
    console.print(f'submitted {len(runs)} runs as job {job_ids[0].partition("_")[0]}', highlight=False)
  else:
    console.print('all unfinished runs are in the queue')
  console.print(
    'add --status to the command to see the state of the runs; when they have ended, repeat the command for the report',
    soft_wrap=True,
  )
  return 0


def read_job_id(directory: Path) -> str | None:
  """The id of the last Slurm job of a run, such as 12_0; None if it has none, or its file is damaged."""
  try:
    job_id = (read_json(directory / JOB_FILE) or {}).get('job')
  except Damaged:
    return None
  return job_id if isinstance(job_id, str) and JOB_ID.fullmatch(job_id) else None


def batch_script(resources: Resources, runs: Sequence[Run]) -> str:
  """The script that `submit` would pass to sbatch."""
  executor = submitit_executor.create_executor(resources, _submission_folder(runs), _job_name(runs))
  return submitit_executor.batch_script(executor, len(runs))


class Task:
  """A task of the array job, pickled by submitit."""

  def __call__(self, run: Run) -> None:
    """Trains the run in a worker process, so that this process can report if the worker is killed."""
    if is_finished(run.directory, run.config):
      return
    slots, usr2_received = devices.worker_slots(1, whole_machine=True, mesh=run.config.mesh), []

    def stop(number: int, frame: object) -> None:
      del frame
      usr2_received.append(number)
      os.kill(os.getpid(), signal.SIGTERM)

    for line in device_report.describe_devices(slots):
      print(line, flush=True)
    requeue = signal.signal(signal.SIGUSR2, stop)
    with worker_pool.claim([run]) as check, ProgressDisplay(new_console(), 1, 0) as display:
      failed, stopped = worker_pool.execute([run], slots, display, grace=SAVE_WITHIN, check=check)
    signal.signal(signal.SIGUSR2, requeue)
    if failed:
      raise RuntimeError(f'{run.label} failed')
    if stopped and usr2_received:
      signal.raise_signal(signal.SIGUSR2)  # the run is saved: now submitit's handler requeues the task and exits
    while stopped:  # by SIGTERM alone: a cancellation or a preemption, which Slurm handles if we do not exit before it
      signal.pause()

  def checkpoint(self, run: Run) -> 'submitit.helpers.DelayedSubmission':
    """The submission of a requeued task: the same run again."""
    import submitit

    return submitit.helpers.DelayedSubmission(self, run)


def _job_name(runs: Sequence[Run]) -> str:
  return runs[0].experiment.replace('/', '_')


def _submission_folder(runs: Sequence[Run]) -> Path:
  """The folder for submitit's files: <workdir>/<experiment>/slurm/<time>."""
  workdir, experiment = workdir_of(runs[0].directory.absolute()), runs[0].experiment.partition('/')[0]
  if not is_one_line(str(workdir)) or any(character in '%\\' for character in str(workdir)):
    raise ConfigError(
      f'--workdir={printable(str(workdir))}: for Slurm the path must not contain %, backslashes or control characters'
    )
  return workdir / experiment / 'slurm' / datetime.datetime.now().strftime('%Y-%m-%d_%H-%M-%S.%f')


def _queued_jobs() -> set[str]:
  """The ids of the user's jobs in the queue, one per task, such as 12_0."""
  command = ['squeue', '--me', '--array', '--noheader', '--format=%i']
  try:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SQUEUE_TIMEOUT)
  except subprocess.TimeoutExpired:
    raise ConfigError(f'Slurm does not respond: squeue took more than {SQUEUE_TIMEOUT} s') from None
  if ended.returncode:
    raise ConfigError(f'Slurm does not respond: {ended.stderr.strip()}')
  return set(ended.stdout.split())
