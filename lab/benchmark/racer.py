"""A racer of BlockLab's: training steps, or large matrix products. Started by racing.py, told in JSON what to do.

{"config": {"model.num_layers": 12, ...}, "core": 0}       training steps of this config, on its mesh
{"product": 2048, "core": null}                            products of float32 matrices of this size
"""

import json
import sys
import time

from lab.benchmark import serving


def main() -> None:
  """Serves one kind of step."""
  work = json.loads(sys.argv[1])
  serving.pin(work['core'])  # before JAX counts the cores
  if 'product' in work:
    serve_products(work['product'])
  else:
    serve_training(work['config'])


def serve_products(size: int) -> None:
  """float32 matrix products, the yardstick of all else."""
  import jax
  import jax.numpy as jnp

  a = jax.random.normal(jax.random.key(0), (size, size))
  product = jax.jit(jnp.matmul).lower(a, a).compile()

  def take(count: int) -> None:
    for _ in range(count):
      jax.block_until_ready(product(a, a))

  serving.serve(take, {})


def serve_training(changes: dict) -> None:
  """Training steps as a run takes them, compiled without the cache of compiled programs."""
  import functools

  import jax
  import numpy as np

  from lab.benchmark.turns import batch_of
  from training.config import Config
  from training.memory import disable_async_dispatch, release_freed_memory
  from training.mesh import by_rule, make_mesh
  from training.programs import train_program
  from training.state import init_state

  disable_async_dispatch()
  config = Config.from_flat(changes)
  mesh = make_mesh(config)
  step, shapes, batch_shapes = train_program(config, mesh)
  state = jax.jit(functools.partial(init_state, config), out_shardings=by_rule(mesh, shapes))(np.uint32(0))
  lowered = step.lower(shapes, batch_shapes)
  started = time.perf_counter()
  compiled = lowered.compile()
  seconds = time.perf_counter() - started
  release_freed_memory()
  batch, memory = batch_of(config), compiled.memory_analysis()

  def take(count: int) -> None:
    nonlocal state
    for _ in range(count):
      state, _ = compiled(state, batch)
    jax.block_until_ready(state)

  serving.serve(take, {'compile_seconds': seconds, 'temporary_bytes': memory.temp_size_in_bytes})


if __name__ == '__main__':
  main()
