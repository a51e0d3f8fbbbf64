"""Measurements on eight CPU devices, printed as JSON, for test_many_devices.py, which runs this as a process.

JAX_NUM_CPU_DEVICES=8 PYTHONPATH=. python tests/training/eight_devices.py FOLDER
"""

import json
import math
import re
import sys
from pathlib import Path

import jax
import numpy as np

from model.config import ModelConfig
from training import programs
from training.config import Config, DataConfig, OptimizerConfig, RunConfig
from training.data.batches import train_batches
from training.data.loading import load_data
from training.mesh import by_rule, make_mesh, replicated
from training.run_files.checkpoint import Checkpoints
from training.scoring import Scoring
from training.state import init_state

CONFIG = Config(
  model=ModelConfig(vocab_size=72, num_layers=3, d_model=32, num_heads=4),
  data=DataConfig(task='copy', sequence_length=16),
  optimizer=OptimizerConfig(learning_rate=4e-3, warmup_steps=4),
  run=RunConfig(steps=50, batch_size=16, log_every=49),
)
MESHES = {
  'data 8': {'mesh.data': 8},
  'fsdp 8': {'mesh.fsdp': 8},
  'data 2 x fsdp 4, each batch in two parts': {'mesh.fsdp': 4, 'optimizer.accumulate': 2},
}
LARGE = CONFIG.replace({'model.d_model': 128, 'model.num_layers': 6, 'model.vocab_size': 256, 'mesh.fsdp': 8})
QUICK = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
COLLECTIVE = re.compile(r'= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(')


def compile_quickly(function, *arguments):
  return function.lower(*arguments).compile(compiler_options=QUICK)


def start(config: Config):
  """The state before the first step, on the mesh."""
  mesh = make_mesh(config)
  state = jax.eval_shape(lambda: init_state(config, np.uint32(0)))
  return jax.jit(lambda: init_state(config, np.uint32(0)), out_shardings=by_rule(mesh, state), compiler_options=QUICK)()


def train(config: Config, state):
  """The last state; the losses and the gradient split of all steps."""
  step, shapes, batch_shapes = programs.train_program(config, make_mesh(config))
  step, seen = compile_quickly(step, shapes, batch_shapes), []
  state = jax.device_put(state, by_rule(make_mesh(config), shapes))
  for batch in train_batches(load_data(config), config.run.batch_size, 0, 0, config.run.steps):
    state, metrics = step(state, batch)
    seen.append((metrics['scalars']['train/loss'], metrics['stream_gradient']))
  return state, jax.tree.map(lambda *steps: np.stack(steps), *jax.device_get(seen))


def distance(found, expected) -> float:
  """The largest relative difference of a leaf: the norm of the difference over the norm."""

  def of(a, b):
    a, b = np.float64(a), np.float64(b)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))

  return max(jax.tree.leaves(jax.tree.map(of, jax.device_get(found), jax.device_get(expected))))


def agreement() -> dict[str, dict[str, float]]:
  initial = jax.device_get(start(CONFIG.replace({'mesh.data': 1})))
  state, seen = train(CONFIG.replace({'mesh.data': 1}), initial)
  found = {}
  for name, changes in MESHES.items():
    other, other_seen = train(CONFIG.replace(changes), initial)
    found[name] = {
      'loss': distance(other_seen[0], seen[0]),
      'parameters': distance(other.params, state.params),
      'gradient split': distance(other_seen[1], seen[1]),
    }
  return found


def held_out() -> float:
  """The difference between the mean losses of a split in many small batches, on eight devices and on one."""
  config = CONFIG.replace({'data.task': 'kjv', 'model.vocab_size': 256, 'data.sequence_length': 8})
  losses = []
  for changes in ({'mesh.data': 1}, {'mesh.data': 8}):
    mesh = make_mesh(config.replace(changes))
    step = programs.on_own_rows(mesh, compile_quickly(*programs.evaluation_program(config, mesh)))
    compiled = programs.Programs(mesh, start, start, step)
    params = jax.device_put(start(config.replace({'mesh.data': 1})).params, replicated(mesh))
    losses.append(Scoring(config, compiled, params).mean_loss('test', load_data(config).test, 16 * 2048))
  return abs(losses[1] / losses[0] - 1)


def bits(state) -> bytes:
  return b''.join(leaf.tobytes() for leaf in jax.tree.leaves(jax.device_get(state)))


def same_bits(folder: Path) -> dict[str, bool]:
  """Training on 8 devices and on one; then restored on one, and from there on four."""
  state = start(CONFIG.replace({'mesh.fsdp': 8}))
  expected = bits(state)
  same = {'initial values': bits(start(CONFIG.replace({'mesh.data': 1}))) == expected}
  shapes = jax.eval_shape(lambda: state)
  for where, changes in (('on one device', {'mesh.data': 1}), ('on four devices', {'mesh.data': 2, 'mesh.fsdp': 2})):
    with Checkpoints(folder / where, 1) as checkpoints:
      checkpoints.save(state, {})
    mesh = make_mesh(CONFIG.replace(changes))
    like = jax.tree.map(lambda leaf, where: leaf.update(sharding=where), shapes, by_rule(mesh, shapes))
    with Checkpoints(folder / where, 1) as checkpoints:
      found = checkpoints.restore(like, lambda about: None)
    assert found is not None
    state = found.state
    assert all(
      leaf.sharding == where.sharding for leaf, where in zip(*map(jax.tree.leaves, (state, like)), strict=True)
    )
    same[where] = bits(state) == expected
  return same


def compiled() -> dict[str, float]:
  step, state, batch = programs.train_program(LARGE, make_mesh(LARGE))
  program = compile_quickly(step, state, batch)
  memory = program.memory_analysis()
  gathered, summed = [], []  # sizes of the collectives
  for shapes, kind in COLLECTIVE.findall(program.as_text()):
    sizes = [math.prod(map(int, filter(None, shape.split(',')))) for shape in re.findall(r'\w+\[([\d,]*)\]', shapes)]
    (summed if kind == 'all-reduce' else gathered).extend(sizes)
  return {
    'bytes': sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)),
    'bytes a device': memory.argument_size_in_bytes,
    'temporaries': memory.temp_size_in_bytes,
    'kernel': max(leaf.size for leaf in jax.tree.leaves(state.params['blocks'])) / LARGE.model.num_layers,
    'gathered': max(gathered),
    'summed': max(summed),
  }


if __name__ == '__main__':
  print(
    json.dumps(
      {
        'agreement': agreement(),
        'held out': held_out(),
        'same bits': same_bits(Path(sys.argv[1])),
        'compiled': compiled(),
      }
    )
  )
