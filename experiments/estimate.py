"""What a run would take, from its compiled training step, without running it: parameters, FLOPs, bytes a device.

A mesh of more devices than there are here is compiled for as many simulated ones, on the CPU.
"""

import math
from collections.abc import Sequence

import jax
from absl import logging
from rich.console import Console

from experiments import machine
from experiments.plan import Run
from experiments.table import new_table
from training.mesh import make_mesh, mesh_shape
from training.programs import train_program

COLUMNS = ('mesh', 'parameters', 'GFLOPs a step', 'parameters MB', 'optimizer MB', 'temporaries MB', 'total MB')


def estimate(runs: Sequence[Run], console: Console) -> int:
  """Prints a line for each variant, on its mesh, and returns the exit code.

  Raises:
    ConfigError: if a batch does not divide over its mesh.
  """
  largest = max((run.config.mesh for run in runs), key=lambda mesh: mesh.named)
  there = machine.worker_places(1, whole_machine=len(runs) == 1, mesh=largest)[0].devices
  if largest.named > there:
    jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', max(largest.named, there))
  logging.set_verbosity(logging.WARNING)  # JAX tells of every kind of device that is not there
  title = f'a training step, compiled for {jax.default_backend()}; mesh: data x fsdp; MB: of one device'
  table = new_table(title, ('variant', *COLUMNS))
  for run in runs:
    if run.seed == runs[0].seed:
      table.add_row(run.variant, *_row(run, max(run.config.mesh.named, there)))
  console.print(table)
  return 0


def _row(run: Run, devices: int) -> list[str]:
  data, fsdp = mesh_shape(run.config, devices)
  config = run.config.replace({'mesh.data': data})
  step, state, batch = train_program(config, make_mesh(config))
  compiled = step.lower(state, batch).compile()
  memory, (where, _) = compiled.memory_analysis(), compiled.input_shardings[0]
  assert memory is not None
  total = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
  flops = (
    config.run.batch_size * config.data.sequence_length * config.model.flops_per_token(config.data.sequence_length)
  )
  sizes = (
    _bytes_a_device(state.params, where.params),
    _bytes_a_device(state.optimizer, where.optimizer),
    memory.temp_size_in_bytes,
    total + memory.temp_size_in_bytes,
  )
  megabytes = [f'{size / 1e6:,.1f}' for size in sizes]
  return [f'{data} x {fsdp}', f'{config.model.num_parameters:,}', f'{flops / 1e9:,.1f}', *megabytes]


def _bytes_a_device(shapes, shardings) -> int:
  def of(leaf, sharding):
    return math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

  return sum(jax.tree.leaves(jax.tree.map(of, shapes, shardings)))
