"""How runs are launched: in worker processes on this machine, as a Slurm job array, or not at all (--dry_run)."""

import contextlib
from collections.abc import Callable, Sequence

from absl import flags
from rich.console import Console

from lab.cli import signals
from lab.core.run import Run
from lab.launch import devices, placement, slurm, worker_pool
from lab.launch.launched import Launched, Launcher
from lab.launch.processes import ALONE, Processes, check_coordinator
from lab.launch.progress import Display
from training.config import ConfigError
from training.memory import check_fits
from training.mesh import mesh_shape
from training.run_files import run_directory

LAUNCHER = flags.DEFINE_enum(
  'launcher', 'local', ['local', 'slurm'],
  'What trains the runs: `local`, worker processes on this machine; `slurm`, an array job, a task a run.',
)  # fmt: skip
DRY_RUN = flags.DEFINE_bool('dry_run', False, 'Print what would be run or submitted; start and write nothing.')


def from_flags(workers: int, processes: Processes = ALONE) -> Launcher:
  """What the flags ask for.

  Args:
    workers: of the local launcher: runs at a time; 0: one a core or GPU.
    processes: that train one run together, of which this is one.

  Raises:
    ConfigError: if what the flags ask for cannot be.
  """
  if LAUNCHER.value == 'local':
    slurm.check_unused()
    return _dry_run(workers=workers, processes=processes) if DRY_RUN.value else local(workers, processes)
  if processes.count > 1:
    raise ConfigError('--launcher=slurm gives each run one process: of several that train one run, leave it out')
  request = slurm.from_flags()
  if DRY_RUN.value:
    return _dry_run(lambda todo: slurm.script(request, todo))
  slurm.check_available()
  return lambda runs, todo, console: Launched([], slurm.submit(request, todo, console) if todo else None)


def check_memory(runs: Sequence[Run], processes: Processes) -> None:
  """Raises ConfigError if a run cannot fit the memory of this machine; of an accelerator, its own runtime tells."""
  if LAUNCHER.value == 'local' and processes is ALONE and devices.ask_jax().platform == 'cpu':
    for run in runs:
      check_fits(run.config)


def local(workers: int = 0, processes: Processes = ALONE) -> Launcher:
  """Trains the runs here, so many at a time; 0: one a core or GPU. A run of one's own has the whole machine.

  Of several processes that train one run together the first writes the report; the others have nothing left to do.
  """
  leads = processes.index == 0

  def launch(runs: Sequence[Run], todo: Sequence[Run], console: Console) -> Launched:
    if not todo:
      return Launched([], None if leads else 0)
    places = _places(runs, workers, processes)
    for run in todo:
      try:
        mesh_shape(run.config, places[0].devices * processes.count, processes.count)
      except ConfigError as error:
        _, source = devices.simulated() if devices.ask_jax().platform == 'cpu' else (1, '')
        raise ConfigError(f'{error}; {source} makes these devices' if source else str(error)) from None
    check_coordinator(processes, console.print)
    with contextlib.ExitStack() as stack:
      check = stack.enter_context(worker_pool.claimed(todo)) if leads else lambda: None
      places, shared = stack.enter_context(placement.settled(places[: len(todo)], processes))
      for line in placement.described(places, shared, processes):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
      display = stack.enter_context(Display(console, len(runs), len(runs) - len(todo)))
      failed, stopped = worker_pool.execute(todo, places, display, processes, check=check)
    if not stopped:
      return Launched(failed, None if leads else int(bool(failed)))
    left = len(worker_pool.unfinished(runs))
    console.print(f'stopped: {len(runs) - left} of {len(runs)} runs are finished; the same command resumes from there')
    return Launched(failed, signals.STOPPED)

  return launch


def _places(runs: Sequence[Run], workers: int, processes: Processes) -> list[devices.Place]:
  """Where the runs are trained. In an experiment a run has one core, so that its bits do not depend on the rest."""
  lone = processes.count > 1 or (len(runs) == 1 and runs[0].experiment == 'custom')
  return devices.worker_places(workers, lone, runs[0].config.mesh, processes)


def _dry_run(
  script: Callable[[Sequence[Run]], str] | None = None, workers: int = 0, processes: Processes = ALONE
) -> Launcher:
  """Prints each run with what it would do, and then how long that takes here, or the script that would be submitted."""

  def launch(runs: Sequence[Run], todo: Sequence[Run], console: Console) -> Launched:
    from training.run_files.checkpoint import steps_in  # orbax takes seconds to import

    submitted = script(todo) if todo and script else ''
    done = {run: max(steps_in(run.directory / 'checkpoints'), default=0) for run in runs}
    for run in runs:
      what = 'is finished' if run not in todo else f'resumes from step {done[run]}' if done[run] else 'starts'
      console.print(f'{run.directory}: {what}', markup=False, highlight=False, soft_wrap=True)
    console.print(f'{len(todo)} of {len(runs)} runs would be trained', highlight=False)
    if submitted:
      console.print(submitted, markup=False, highlight=False, soft_wrap=True)
    elif todo:
      from lab.launch.forecast import forecast  # which reads finished runs

      places = _places(runs, workers, processes)[: len(todo)]
      found = forecast(todo, done, places, run_directory.workdir_of(todo[0].directory))
      if found:
        console.print(found.line(len(todo), len(places)), markup=False, highlight=False, soft_wrap=True)
    return Launched([], 0)

  return launch
