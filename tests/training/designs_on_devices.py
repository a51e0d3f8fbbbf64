"""The gradient split of every residual design on eight CPU devices and on one, as JSON, for test_many_devices.py.

JAX_NUM_CPU_DEVICES=8 PYTHONPATH=.:tests/model python tests/training/designs_on_devices.py
"""

import functools
import json

import jax
import numpy as np
from designs import DESIGNS
from eight_devices import QUICK, distance
from tiny_models import model_params, tiny

from model import zero_taps
from training import programs
from training.config import Config
from training.mesh import by_row, by_rule, make_mesh, replicated
from training.step import loss_and_gradients


def products(changes, mesh_changes):
  """The products at the taps and the gradient, by `loss_and_gradients`, sharded over the mesh."""
  model = tiny(**{'d_ff': 16, 'vocab_size': 16} | changes)
  config = Config(model=model).replace({'run.batch_size': 8, 'data.sequence_length': 4, **mesh_changes})
  mesh, params = make_mesh(config), model_params(model)
  tokens = np.random.default_rng(0).integers(0, 16, (8, 5)).astype(np.int32)
  batch = {'inputs_BT': tokens[:, :-1], 'targets_BT': tokens[:, 1:], 'weights_BT': np.ones((8, 4), np.float32)}
  measure = functools.partial(loss_and_gradients, config, constrain=programs._constrain(mesh))
  shardings = by_rule(mesh, params), by_row(mesh), replicated(mesh)
  program = jax.jit(measure, in_shardings=shardings, compiler_options=QUICK)
  _, gradient, split, _ = program(params, batch, zero_taps(model))
  return {'gradient': gradient, 'split': split}


if __name__ == '__main__':
  found = {}
  for name, changes in DESIGNS.items():
    one, many = (products(changes, mesh) for mesh in ({'mesh.data': 1}, {'mesh.data': 4, 'mesh.fsdp': 2}))
    found[name] = {part: distance(many[part], one[part]) for part in one}
  print(json.dumps(found))
