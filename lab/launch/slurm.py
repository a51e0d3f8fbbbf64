"""Runs as one Slurm array job, a task a run, through submitit; what a task does, and how it comes to be requeued.

Slurm sends SIGUSR2 to a job whose time is almost up, or which is to make room where the cluster is configured so: the
run saves, the task goes back into the queue, and the run goes on when it starts again. A node that is lost has its
tasks requeued by Slurm itself, and their runs go on from their last checkpoints.
"""

import contextlib
import dataclasses
import datetime
import io
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags
from rich.console import Console

from lab.cli.command_line import new_console
from lab.core.run import Run
from lab.launch import devices, placement, worker_pool
from lab.launch.progress import Display
from training.config import ConfigError
from training.files import Damaged, read_json, write_sealed
from training.paths import is_plain, printable
from training.run_files.run_directory import FAILURE, is_finished, workdir_of

if TYPE_CHECKING:
  import submitit

PARTITION = flags.DEFINE_string('slurm_partition', None, 'The partition. Default: that of the cluster.')
TIME = flags.DEFINE_string(
  'slurm_time', '1:00:00', 'After this time a run saves, goes back into the queue, and goes on; written as for sbatch.'
)
GPUS = flags.DEFINE_integer('slurm_gpus', None, 'GPUs of a run. Default: none is asked for.', lower_bound=1)
CPUS = flags.DEFINE_integer('slurm_cpus', None, 'Cores of a run. Default: that of the cluster.', lower_bound=1)
MEMORY = flags.DEFINE_string('slurm_mem', None, 'Memory of a run, as 16G. Default: that of the cluster.')
ACCOUNT = flags.DEFINE_string('slurm_account', None, 'Whom to charge. Default: that of the user.')
OWN_FLAGS = (PARTITION, TIME, GPUS, CPUS, MEMORY, ACCOUNT)

NOTICE = 90  # seconds between SIGUSR2 and the end
ANSWER_WITHIN = 120  # seconds, for squeue
SAVE_WITHIN = 60.0  # of them
REQUEUES = 100  # that a run which needs more time gets; each gives it the time asked for
TIME_FORMAT = re.compile(r'(?:(\d{1,4})-)?(\d{1,7})(?::(\d{1,4}))?(?::(\d{1,4}))?', re.ASCII)
# A line break in one would start a line of the batch script; what is right is little, so that alone is let through.
NAMES = r'[A-Za-z0-9_][A-Za-z0-9_.+-]*(,[A-Za-z0-9_][A-Za-z0-9_.+-]*)*'
FORMATS = (
  (PARTITION, NAMES, 'write a name, or several with commas, as in --slurm_partition=gpu'),
  (ACCOUNT, NAMES, 'write a name, as in --slurm_account=lab'),
  (MEMORY, r'[0-9]{1,9}([KMGT]B?)?', 'write a size, as in --slurm_mem=16G'),
)
RECORD = 'slurm.json'  # in a run's directory: its last job
JOB = re.compile(r'\d+(_\d+)?')


@dataclasses.dataclass(frozen=True)
class Request:
  """What a run asks of the cluster; None: nothing.

  Attributes:
    minutes: after which it goes back into the queue.
    partition, gpus, cpus, memory, account: as of sbatch.
  """

  minutes: int
  partition: str | None = None
  gpus: int | None = None
  cpus: int | None = None
  memory: str | None = None
  account: str | None = None


def from_flags() -> Request:
  """What the flags ask for.

  Raises:
    ConfigError: if submitit is missing, or a flag is not written as sbatch takes it.
  """
  try:
    import submitit  # noqa: F401
  except ImportError:
    raise ConfigError(
      '--launcher=slurm needs submitit: pip install -r requirements-slurm.txt, in the environment that runs this'
    ) from None
  for flag, pattern, remedy in FORMATS:
    if flag.value is not None and not re.fullmatch(pattern, flag.value, re.ASCII | re.IGNORECASE):
      raise ConfigError(f'--{flag.name}={printable(flag.value)}: {remedy}')
  minutes = parse_time(TIME.value)
  return Request(minutes, PARTITION.value, GPUS.value, CPUS.value, MEMORY.value, ACCOUNT.value)


def check_unused() -> None:
  """Raises ConfigError if a flag says what to ask of Slurm."""
  for flag in OWN_FLAGS:
    if flag.present:
      raise ConfigError(f'--{flag.name} is for --launcher=slurm: add that, or leave this out')


def check_available() -> None:
  """Raises ConfigError if there is no Slurm here."""
  for name in ('sbatch', 'srun', 'squeue'):
    if shutil.which(name) is None:
      raise ConfigError(
        f'--launcher=slurm: there is no {name} here; run this where Slurm is, as on the login node of a cluster, '
        'or add --dry_run'
      )


def parse_time(text: str) -> int:
  """Minutes, rounded up, of a time as sbatch takes it: m, m:s, h:m:s, d-h, d-h:m or d-h:m:s.

  Raises:
    ConfigError: if it is none, or so short that a run could not train in it.
  """
  match = TIME_FORMAT.fullmatch(text)
  if match is None:
    raise ConfigError(
      f'--slurm_time={printable(text)}: write minutes, hours:minutes:seconds or days-hours, as in 2:00:00'
    )
  days, *given = (None if part is None else int(part) for part in match.groups())
  parts = [part for part in given if part is not None]
  if days is None and len(parts) < 3:
    parts = [0, *parts]
  hours, minutes, seconds = (*parts, 0, 0)[:3]
  total = math.ceil((((days or 0) * 24 + hours) * 60 + minutes) + seconds / 60)
  if total * 60 < 2 * NOTICE:
    raise ConfigError(f'--slurm_time={text}: must be at least 3 minutes, the last {NOTICE} s of which are for saving')
  return total


def submit(request: Request, runs: Sequence[Run], console: Console) -> int:
  """Submits the runs that are not in the queue, as one array job, and returns the exit code.

  Raises:
    ConfigError: if Slurm refuses it, with its words; nothing is left behind then.
  """
  from submitit.core.utils import FailedJobError

  queued = _queue()
  for run in runs:
    if (run.directory / RECORD).exists() and job_of(run.directory) is None:
      console.print(f'{run.directory / RECORD} is damaged: its run is submitted again', markup=False, soft_wrap=True)
  runs = [run for run in runs if job_of(run.directory) not in queued]
  if runs:
    folder = _folder(runs)
    outermost = [path for path in (folder, *folder.parents) if not path.exists()][-1]
    try:
      with contextlib.redirect_stderr(io.StringIO()):  # submitit prints there what it raises
        jobs = executor_for(request, folder, runs[0]).map_array(Task(), [_absolute(run) for run in runs])
    except FailedJobError as error:
      shutil.rmtree(outermost)
      raise ConfigError(f'Slurm refused the job: {error}') from None
    for run, job in zip(runs, jobs, strict=True):
      write_sealed(run.directory / RECORD, {'job': job.job_id})
      (run.directory / FAILURE).unlink(missing_ok=True)
    console.print(f'submitted {len(runs)} runs as job {jobs[0].job_id.partition("_")[0]}', highlight=False)
  else:
    console.print('all that is not finished is in the queue')
  console.print('the same command with --status shows how they do; as it is, once they have ended, the report')
  return 0


def job_of(directory: Path) -> str | None:
  """The last Slurm job of a run, as 12_0; None if it has none, or the record of it is damaged."""
  try:
    job = (read_json(directory / RECORD) or {}).get('job')
  except Damaged:
    return None
  return job if isinstance(job, str) and JOB.fullmatch(job) else None


def script(request: Request, runs: Sequence[Run]) -> str:
  """What would be given to sbatch."""
  executor = executor_for(request, _folder(runs), runs[0])
  if len(runs) > 1:
    executor.parameters['map_count'] = len(runs)  # as submitit does
  return executor._make_submission_file_text(executor._submitit_command_str, '')


def executor_for(request: Request, folder: Path, run: Run) -> 'submitit.SlurmExecutor':
  """What submits the runs; a name for all of them is taken from one."""
  import submitit

  class Executor(submitit.SlurmExecutor):
    """One that can be made, for its script, where there is no Slurm."""

    @classmethod
    def affinity(cls) -> int:
      return 2

  executor = Executor(folder, REQUEUES, python=f'{shlex.quote(sys.executable)} -P')
  cores = {} if request.cpus is None else {'srun_args': [f'--cpus-per-task={request.cpus}']}  # srun does not inherit it
  executor.update_parameters(
    job_name=run.experiment.replace('/', '_'),
    time=request.minutes,
    partition=request.partition,
    gpus_per_node=request.gpus,
    cpus_per_task=request.cpus,
    mem=request.memory,
    account=request.account,
    wckey=None,  # submitit's own is unknown to a cluster that checks them
    signal_delay_s=NOTICE,
    additional_parameters={'requeue': True},
    setup=[f'export PYTHONPATH={shlex.quote(str(worker_pool.PROJECT))}${{PYTHONPATH:+:$PYTHONPATH}}'],
    **cores,
  )
  return executor


class Task:
  """What a task of the array does."""

  def __call__(self, run: Run) -> None:
    """Trains the run, in a worker process as everywhere: that may be killed, as for memory, and this one will tell."""
    if is_finished(run.directory, run.config):
      return
    places, told = devices.worker_places(1, whole_machine=True, mesh=run.config.mesh), []

    def stop(number: int, frame: object) -> None:
      del frame
      told.append(number)
      os.kill(os.getpid(), signal.SIGTERM)

    for line in placement.described(places):
      print(line, flush=True)
    requeue = signal.signal(signal.SIGUSR2, stop)
    with worker_pool.claimed([run]) as check, Display(new_console(), 1, 0) as display:
      failed, stopped = worker_pool.execute([run], places, display, grace=SAVE_WITHIN, check=check)
    signal.signal(signal.SIGUSR2, requeue)
    if failed:
      raise RuntimeError(f'{run.label} failed')
    if stopped and told:
      signal.raise_signal(signal.SIGUSR2)  # now that it has saved: submitit requeues the task, and ends it
    while stopped:
      signal.pause()  # A SIGTERM alone is a cancellation or a preemption: which, Slurm knows, unless we end before it.

  def checkpoint(self, run: Run) -> 'submitit.helpers.DelayedSubmission':
    """What a requeued task does: the same."""
    import submitit

    return submitit.helpers.DelayedSubmission(self, run)


def _folder(runs: Sequence[Run]) -> Path:
  """Where submitit keeps a submission: <workdir>/<experiment>/slurm/<time>."""
  workdir, experiment = workdir_of(runs[0].directory.absolute()), runs[0].experiment.partition('/')[0]
  if not is_plain(str(workdir)) or any(character in '%\\' for character in str(workdir)):
    raise ConfigError(
      f'--workdir={printable(str(workdir))}: Slurm gives % and backslashes a meaning of their own: choose another one'
    )
  return workdir / experiment / 'slurm' / datetime.datetime.now().strftime('%Y-%m-%d_%H-%M-%S.%f')


def _absolute(run: Run) -> Run:
  return dataclasses.replace(run, directory=run.directory.absolute())


def _queue() -> set[str]:
  """The user's jobs, one a task, as 12_0."""
  command = ['squeue', '--me', '--array', '--noheader', '--format=%i']
  try:
    answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_WITHIN)
  except subprocess.TimeoutExpired:
    raise ConfigError(f'Slurm does not answer: squeue took more than {ANSWER_WITHIN} s') from None
  if answer.returncode:
    raise ConfigError(f'Slurm does not answer: {answer.stderr}')
  return set(answer.stdout.split())
