import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from training.config import Config, ConfigError
from training.mesh import by_rule, make_mesh, mesh_shape, own_rows, partition
from training.state import init_state

BLOCK, ALONE = (jax.tree_util.DictKey('blocks'), jax.tree_util.DictKey('kernel')), (jax.tree_util.DictKey('kernel'),)


@pytest.mark.parametrize(
  ('path', 'shape', 'parts', 'split'),
  [
    (BLOCK, (6, 64, 171), 8, (None, 'fsdp')),  # 171 does not divide
    (BLOCK, (6, 64, 256), 8, (None, None, 'fsdp')),
    (BLOCK, (6, 256, 64), 8, (None, 'fsdp')),
    (BLOCK, (64, 4, 2), 8, ()),  # the layer axis is never split
    (BLOCK, (8, 64), 8, ()),  # a gain
    (BLOCK, (8,), 8, ()),
    (ALONE, (64, 256), 8, (None, 'fsdp')),
    (ALONE, (256, 64), 8, ('fsdp',)),
    (ALONE, (64,), 8, ()),
    (ALONE, (), 8, ()),
    (ALONE, (256, 64), 1, ()),
  ],
)
def test_the_dimension_along_which_a_leaf_is_split(path, shape, parts, split):
  assert partition(path, shape, parts) == PartitionSpec(*split)


@pytest.mark.parametrize('name', ['adamw', 'muon'])
def test_the_optimizer_state_is_sharded_like_the_parameters(name):
  """On an abstract mesh."""
  config = Config().replace({'optimizer.name': name})
  state = jax.eval_shape(lambda seed: init_state(config, seed), jax.ShapeDtypeStruct((), np.uint32))
  mesh = jax.sharding.AbstractMesh((1, 4), ('data', 'fsdp'))
  params = {jax.tree_util.keystr(path): s.spec for path, s in jax.tree.leaves_with_path(by_rule(mesh, state.params))}
  found = {}
  for path, sharding in jax.tree.leaves_with_path(by_rule(mesh, state.optimizer)):
    found |= {name: sharding.spec for name in params if jax.tree_util.keystr(path).endswith(name)}
  assert found == params
  assert PartitionSpec() in params.values()
  assert len(set(params.values())) > 1


@pytest.mark.parametrize(
  ('changes', 'devices', 'shape'),
  [({}, 1, (1, 1)), ({}, 8, (8, 1)), ({'mesh.fsdp': 4}, 8, (2, 4)), ({'mesh.data': 2, 'mesh.fsdp': 2}, 8, (2, 2))],
)
def test_the_shape_of_a_mesh(changes, devices, shape):
  assert mesh_shape(Config().replace(changes), devices) == shape


@pytest.mark.parametrize(
  ('changes', 'devices', 'processes', 'message'),
  [
    ({'mesh.data': 4}, 2, 1, 'mesh.data=4 and mesh.fsdp=1 need 4 devices, not the 2 devices of'),
    ({'mesh.fsdp': 3}, 8, 1, 'mesh.fsdp=3 does not divide the 8 devices'),
    ({'mesh.data': 2}, 8, 2, 'need 2 devices, not the 8 devices'),  # each process must have a part
    ({'run.batch_size': 12}, 8, 1, 'run.batch_size=12 cannot be split evenly over 8 devices'),
    ({'optimizer.accumulate': 4}, 8, 1, 'make it a multiple of 32'),
  ],
)
def test_an_impossible_mesh_is_refused(changes, devices, processes, message):
  with pytest.raises(ConfigError, match=message):
    mesh_shape(Config().replace(changes), devices, processes)


def test_a_single_process_has_all_rows():
  np.testing.assert_array_equal(own_rows(make_mesh(Config()), 16), np.arange(16))
