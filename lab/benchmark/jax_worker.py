"""A benchmark worker for JAX programs.

trials.py starts it with a JSON object that describes one task:

  {"config": {"model.num_layers": 12, ...}, "core": 0}                training steps of this config, on its mesh
  {"attention": "plain", "shape": [16, 256, 8, 32], "core": null}     causal attention, forward and backward
  {"product": 2048, "core": null}                                     a product of float32 matrices of this size

`core` is the only core that the process may use; null: all cores.
"""

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lab.benchmark.worker_protocol import pin_to_core, serve
from model.kernels.blocked_attention import blocked_attention
from model.kernels.plain_attention import plain_attention
from training.config import Config
from training.memory import disable_async_dispatch, release_freed_memory
from training.mesh import by_rule, make_mesh
from training.programs import train_program
from training.state import init_state

KERNELS: dict[str, Callable[..., Any]] = {'plain': plain_attention, 'blocked': blocked_attention}


def main() -> None:
  """Serves iterations of the task that the command line describes."""
  task = json.loads(sys.argv[1])
  pin_to_core(task['core'])  # before JAX counts the cores
  if 'product' not in task:
    disable_async_dispatch()  # as training does
  jax.config.update('jax_enable_compilation_cache', False)  # so that compile_seconds is the time to compile
  if 'config' in task:
    serve_training(Config.from_flat(task['config']))
  elif 'attention' in task:
    serve_attention(KERNELS[task['attention']], task['shape'])
  else:
    a = jax.random.normal(jax.random.key(0), (task['product'], task['product']))
    serve_function(jnp.matmul, a, a)


def serve_training(config: Config) -> None:
  """Serves training steps, all on the same batch of random tokens."""
  mesh = make_mesh(config)
  step, shapes, batch_shapes = train_program(config, mesh)
  state = jax.jit(functools.partial(init_state, config), out_shardings=by_rule(mesh, shapes))(np.uint32(0))
  program, facts = _compile(step, shapes, batch_shapes)
  release_freed_memory()
  batch = random_batch(config)

  def iterate(count: int) -> None:
    nonlocal state
    for _ in range(count):
      state, _ = program(state, batch)
    jax.block_until_ready(state)

  serve(iterate, facts)


def serve_attention(kernel: Callable, shape: list[int]) -> None:
  """Serves the output and the gradients of causal attention; `shape` is (B, T, H, K)."""
  q, k, v, g = jax.random.normal(jax.random.key(0), (4, *shape))

  def output_and_gradients(q, k, v, g):
    output, pull_back = jax.vjp(lambda q, k, v: kernel(q, k, v, True), q, k, v)
    return output, pull_back(g.astype(jnp.float32))

  serve_function(output_and_gradients, q, k, v, g)


def serve_function(function: Callable, *arguments: jax.Array) -> None:
  """Serves calls of a function with fixed arguments."""
  program, facts = _compile(jax.jit(function), *arguments)

  def iterate(count: int) -> None:
    for _ in range(count):
      jax.block_until_ready(program(*arguments))

  serve(iterate, facts)


def _compile(jitted: Any, *arguments: Any) -> tuple[Callable, dict[str, Any]]:
  """The compiled program, the seconds to compile it, and the bytes of its temporaries."""
  lowered = jitted.lower(*arguments)
  started = time.perf_counter()
  program = lowered.compile()
  seconds = time.perf_counter() - started
  return program, {'compile_seconds': seconds, 'temporary_bytes': program.memory_analysis().temp_size_in_bytes}


def random_batch(config: Config) -> dict[str, np.ndarray]:
  """A batch of random tokens."""
  shape = config.run.batch_size, config.data.sequence_length
  inputs, targets = np.random.default_rng(0).integers(config.model.vocab_size, size=(2, *shape), dtype=np.int32)
  return {'inputs_BT': inputs, 'targets_BT': targets, 'weights_BT': np.ones(shape, np.float32)}


if __name__ == '__main__':
  main()
