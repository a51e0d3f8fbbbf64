"""The devices of a run: a mesh with the axes `data` and `fsdp`, and the sharding of arrays over it.

A batch is split over both axes. Parameters and optimizer state are split over `fsdp`; the parameters of a layer are
gathered when it runs (Rajbhandari et al. 2020, stage 3; Zhao et al. 2023).
"""

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from training.config import Config, ConfigError
from training.parameter_tree import is_stacked

AXES = ('data', 'fsdp')


def mesh_shape(config: Config, devices: int, processes: int = 1) -> tuple[int, int]:
  """The sizes of the axes `data` and `fsdp`.

  Args:
    config: the run's config; its mesh, batch size and accumulation are read.
    devices: number of devices in all processes. A single process may leave some idle.
    processes: number of processes that train the run together.

  Raises:
    ConfigError: if the mesh does not match the devices, or the batch cannot be split evenly over them.
  """
  mesh, accumulate = config.mesh, config.optimizer.accumulate
  available = f'the {f"{devices} devices" if devices > 1 else "one device"} of this run'
  if mesh.data == -1 and devices % mesh.fsdp:
    raise ConfigError(f'mesh.fsdp={mesh.fsdp} does not divide {available}')
  if mesh.required_devices > devices or (processes > 1 and mesh.data != -1 and mesh.required_devices != devices):
    raise ConfigError(
      f'mesh.data={mesh.data} and mesh.fsdp={mesh.fsdp} need {mesh.required_devices} devices, not {available}: '
      'mesh.data=-1 uses all of them'
    )
  data = devices // mesh.fsdp if mesh.data == -1 else mesh.data
  parts = data * mesh.fsdp
  if config.run.batch_size % (parts * accumulate):
    in_parts = f' in optimizer.accumulate={accumulate} parts' if accumulate > 1 else ''
    raise ConfigError(
      f'run.batch_size={config.run.batch_size}{in_parts} cannot be split evenly over {parts} devices '
      f'(mesh.data={data}, mesh.fsdp={mesh.fsdp}): make it a multiple of {parts * accumulate}'
    )
  return data, mesh.fsdp


def make_mesh(config: Config) -> Mesh:
  """The mesh of a run, over the devices of all processes; for errors see `mesh_shape`."""
  shape = mesh_shape(config, jax.device_count(), jax.process_count())
  return jax.make_mesh(shape, AXES, (AxisType.Auto, AxisType.Auto), devices=jax.devices()[: shape[0] * shape[1]])


def replicated(mesh: Mesh) -> NamedSharding:
  """A copy on every device."""
  return NamedSharding(mesh, PartitionSpec())


def by_row(mesh: Mesh) -> NamedSharding:
  """The first axis of an array, the batch, split over all devices."""
  return NamedSharding(mesh, PartitionSpec(AXES))


def by_rule(mesh: Mesh, tree: Any) -> Any:
  """The sharding of every leaf of a state, or of its parameters: see `partition`."""
  parts = mesh.shape['fsdp']
  return jax.tree.map_with_path(lambda path, leaf: NamedSharding(mesh, partition(path, leaf.shape, parts)), tree)


def partition(path, shape: tuple[int, ...], parts: int) -> PartitionSpec:
  """Splits a matrix along its largest divisible dimension, except the layer axis; replicates a vector.

  Args:
    path: the leaf's path.
    shape: the leaf's shape.
    parts: the size of the axis `fsdp`.
  """
  first = int(is_stacked(path))
  dividing = [axis for axis in range(first, len(shape)) if shape[axis] % parts == 0]
  if parts == 1 or len(shape) - first < 2 or not dividing:
    return PartitionSpec()
  largest = max(dividing, key=lambda axis: shape[axis])
  return PartitionSpec(*[None] * largest, 'fsdp')


def own_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
  """The rows of a global batch that are on the devices of this process."""
  slices = by_row(mesh).addressable_devices_indices_map((batch_size,)).values()
  return np.unique(np.concatenate([np.arange(batch_size)[rows] for rows in slices]))


def put_batch(mesh: Mesh, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
  """Assembles a global batch from each process's rows of it."""
  return jax.tree.map(functools.partial(jax.make_array_from_process_local_data, by_row(mesh)), batch)
