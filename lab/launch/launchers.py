"""The launchers of runs: worker processes on this machine, a Slurm array job, or a dry run, which trains nothing."""

import contextlib
from collections.abc import Callable, Sequence

from absl import flags
from rich.console import Console

from lab.cli import signals
from lab.core.run import Run
from lab.launch import device_report, devices, placement, slurm, slurm_flags, worker_pool
from lab.launch.devices import WorkerSlot
from lab.launch.distributed import check_coordinator
from lab.launch.launch_result import Launcher, LaunchResult
from lab.launch.process_group import SINGLE_PROCESS, ProcessGroup
from lab.launch.progress import ProgressDisplay
from training.config import ConfigError
from training.memory import check_fits
from training.mesh import mesh_shape
from training.run_files import run_directory

LAUNCHER = flags.DEFINE_enum(
  'launcher', 'local', ['local', 'slurm'],
  'How to train the runs: `local`, in worker processes on this machine; `slurm`, in an array job, one task per run.',
)  # fmt: skip
DRY_RUN = flags.DEFINE_bool(
  'dry_run',
  False,
  'Print which runs would be trained and the estimated time, or the Slurm script; start and write nothing.',
)


def from_flags(workers: int, group: ProcessGroup = SINGLE_PROCESS) -> Launcher:
  """The launcher that the flags select.

  Args:
    workers: how many runs the local launcher trains at a time; 0: one per core or GPU.
    group: the processes that train one run together, of which this is one.

  Raises:
    ConfigError: if the flags contradict one another, or Slurm is not available.
  """
  if LAUNCHER.value == 'local':
    slurm_flags.check_unused()
    return _dry_run_launcher(workers=workers, group=group) if DRY_RUN.value else local_launcher(workers, group)
  if group.count > 1:
    raise ConfigError('--launcher=slurm trains each run in one process: omit it to train a run with several processes')
  resources = slurm_flags.from_flags()
  if DRY_RUN.value:
    return _dry_run_launcher(lambda todo: slurm.batch_script(resources, todo))
  slurm_flags.check_available()
  return lambda runs, todo, console: LaunchResult([], slurm.submit(resources, todo, console) if todo else None)


def check_memory(runs: Sequence[Run], group: ProcessGroup) -> None:
  """Raises ConfigError if a run does not fit in memory. Checked only for local training on a CPU in one process."""
  if LAUNCHER.value == 'local' and group is SINGLE_PROCESS and devices.detect_devices().platform == 'cpu':
    for run in runs:
      check_fits(run.config)


def local_launcher(workers: int = 0, group: ProcessGroup = SINGLE_PROCESS) -> Launcher:
  """A launcher that trains the runs in worker processes on this machine. A single custom run uses the whole machine.

  Args:
    workers: how many runs to train at a time; 0: one per core or GPU.
    group: the processes that train one run together; only process 0 writes the report.
  """
  is_first = group.index == 0

  def launch(runs: Sequence[Run], todo: Sequence[Run], console: Console) -> LaunchResult:
    if not todo:
      return LaunchResult([], None if is_first else 0)
    slots = _worker_slots(runs, workers, group)
    for run in todo:
      try:
        mesh_shape(run.config, slots[0].devices * group.count, group.count)
      except ConfigError as error:
        _, source = devices.simulated_cpu_devices() if devices.detect_devices().platform == 'cpu' else (1, '')
        raise ConfigError(f'{error}; {source} sets this number of devices' if source else str(error)) from None
    check_coordinator(group, console.print)
    with contextlib.ExitStack() as stack:
      check = stack.enter_context(worker_pool.claim(todo)) if is_first else lambda: None
      slots, shared = stack.enter_context(placement.place_workers(slots[: len(todo)], group))
      for line in device_report.describe_devices(slots, shared, group):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
      display = stack.enter_context(ProgressDisplay(console, len(runs), len(runs) - len(todo)))
      failed, stopped = worker_pool.execute(todo, slots, display, group, check=check)
    if not stopped:
      return LaunchResult(failed, None if is_first else int(bool(failed)))
    left = len(worker_pool.unfinished(runs))
    console.print(
      f'stopped: {len(runs) - left} of {len(runs)} runs are finished; run the same command again to resume the rest'
    )
    return LaunchResult(failed, signals.STOPPED)

  return launch


def _worker_slots(runs: Sequence[Run], workers: int, group: ProcessGroup) -> list[WorkerSlot]:
  """The slots of the workers. A run of an experiment uses one core, so its results do not depend on the core count."""
  whole_machine = group.count > 1 or (len(runs) == 1 and runs[0].experiment == 'custom')
  return devices.worker_slots(workers, whole_machine, runs[0].config.mesh, group)


def _dry_run_launcher(
  batch_script: Callable[[Sequence[Run]], str] | None = None, workers: int = 0, group: ProcessGroup = SINGLE_PROCESS
) -> Launcher:
  """A launcher that only prints: what each run would do, then the Slurm script or the estimated time."""

  def launch(runs: Sequence[Run], todo: Sequence[Run], console: Console) -> LaunchResult:
    from training.run_files.checkpoint import steps_in  # orbax takes seconds to import

    script = batch_script(todo) if todo and batch_script else ''
    resume_steps = {run: max(steps_in(run.directory / 'checkpoints'), default=0) for run in runs}
    for run in runs:
      step = resume_steps[run]
      what = 'is finished' if run not in todo else f'resumes from step {step}' if step else 'starts'
      console.print(f'{run.directory}: {what}', markup=False, highlight=False, soft_wrap=True)
    console.print(f'{len(todo)} of {len(runs)} runs would be trained', highlight=False)
    if script:
      console.print(script, markup=False, highlight=False, soft_wrap=True)
    elif todo:
      from lab.launch.time_estimate import estimate_time  # imports NumPy, and reads finished runs

      slots = _worker_slots(runs, workers, group)[: len(todo)]
      estimate = estimate_time(todo, resume_steps, slots, run_directory.workdir_of(todo[0].directory))
      if estimate:
        console.print(estimate.sentence(len(todo), len(slots)), markup=False, highlight=False, soft_wrap=True)
    return LaunchResult([], 0)

  return launch
