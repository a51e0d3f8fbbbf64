"""--estimate: parameters, FLOPs and memory per device of a compiled training step, and the time of all runs.

A mesh with more devices than this machine has is compiled for simulated CPU devices.
"""

import math
import os
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from absl import logging
from jax.stages import Compiled
from rich.console import Console

from lab.cli.tables import new_table
from lab.core.run import Run
from lab.launch import devices
from lab.launch.time_estimate import TimeEstimate, run_seconds, speed_of_finished_runs, total_seconds
from model.counts import flops_per_token, num_parameters
from training.config import Config
from training.mesh import make_mesh, mesh_shape
from training.programs import train_program
from training.run_files.run_directory import workdir_of

COLUMNS = (
  'mesh', 'parameters', 'GFLOPs\nper step', 'parameters\nMB', 'optimizer\nMB', 'temporary\nMB', 'total\nMB',
)  # fmt: skip

TIMED_STEPS = 5


def estimate(runs: Sequence[Run], console: Console, workers: int = 0, grid: Sequence[Run] = ()) -> int:
  """Prints a row for each variant on its mesh, and how long all runs would take here; returns the exit code.

  The time is estimated from comparable finished runs in the work directory, otherwise from a few timed steps.

  Args:
    runs: the requested runs.
    console: where to print.
    workers: the number of runs at a time; 0: one per core or GPU.
    grid: the tuning runs of the same variants, which count in the time alone.

  Raises:
    ConfigError: if a batch does not divide over its mesh.
  """
  largest = max((run.config.mesh for run in runs), key=lambda mesh: mesh.required_devices)
  slots = devices.worker_slots(workers, whole_machine=len(runs) == 1, mesh=largest)[: len(runs) + len(grid)]
  available = slots[0].devices
  if slots[0].core is not None and hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, {slots[0].core})  # as for a worker, before JAX counts the cores
  if largest.required_devices > available:
    jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', max(largest.required_devices, available))
  logging.set_verbosity(logging.WARNING)  # JAX logs every kind of device that is missing
  title = f'a training step, compiled for {jax.default_backend()}; mesh: data x fsdp; MB: per device'
  table = new_table(title, ('variant', *COLUMNS))
  timed: dict[str, float] = {}
  speed, basis = speed_of_finished_runs(workdir_of(runs[0].directory), slots[0], [run.config for run in runs])
  for run in runs:
    if run.seed == runs[0].seed:
      row, compiled = _row(run, max(run.config.mesh.required_devices, available))
      table.add_row(run.variant, *row)
      if speed is None and largest.required_devices <= available:
        timed[run.variant] = _tokens_per_second(run.config, compiled)
  console.print(table)
  if speed is not None or timed:
    each = [
      run_seconds(run.config, speed(run.config) if speed else timed[run.variant.partition('/lr_')[0]])
      for run in (*grid, *runs)
    ]
    basis = basis or f'from {TIMED_STEPS} timed steps of each variant, one at a time'
    time_estimate = TimeEstimate(total_seconds(each, len(slots)), basis)
    console.print(time_estimate.sentence(len(each), len(slots)), soft_wrap=True)
  return 0


def _tokens_per_second(config: Config, compiled: Compiled) -> float:
  """The training speed of the fastest of a few steps, with all parameters 0."""
  shapes, batch_shapes = compiled.in_avals[0]
  where, rows = compiled.input_shardings[0]
  state, batch = (
    jax.tree.map(lambda leaf, sharding: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), sharding), values, shardings)
    for values, shardings in ((shapes, where), (batch_shapes, rows))
  )
  times = []
  for _ in range(TIMED_STEPS + 1):  # the first includes one-time setup
    started = time.perf_counter()
    state, metrics = compiled(state, batch)
    jax.block_until_ready((state, metrics))
    times.append(time.perf_counter() - started)
  return config.run.batch_size * config.data.sequence_length / min(times[1:])


def _row(run: Run, device_count: int) -> tuple[list[str], Compiled]:
  data, fsdp = mesh_shape(run.config, device_count)
  config = run.config.replace({'mesh.data': data})
  step, state, batch = train_program(config, make_mesh(config))
  compiled = step.lower(state, batch).compile()
  memory, (where, _) = compiled.memory_analysis(), compiled.input_shardings[0]
  assert memory is not None
  total = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
  flops = (
    config.run.batch_size * config.data.sequence_length * flops_per_token(config.model, config.data.sequence_length)
  )
  sizes = (
    _bytes_a_device(state.params, where.params),
    _bytes_a_device(state.optimizer, where.optimizer),
    memory.temp_size_in_bytes,
    total + memory.temp_size_in_bytes,
  )
  megabytes = [f'{size / 1e6:,.1f}' for size in sizes]
  return [f'{data} x {fsdp}', f'{num_parameters(config.model):,}', f'{flops / 1e9:,.1f}', *megabytes], compiled


def _bytes_a_device(shapes, shardings) -> int:
  def of(leaf, sharding):
    return math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

  return sum(jax.tree.leaves(jax.tree.map(of, shapes, shardings)))
