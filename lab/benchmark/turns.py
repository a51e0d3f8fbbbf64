"""Turns within one process, for programs that need no environment of their own."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from training.config import Config
from training.state import init_state
from training.step import make_train_step


@dataclasses.dataclass
class Contender:
  """What takes turns.

  Attributes:
    name: of it.
    take: runs it so many times; returns when the device is done.
    compile_seconds: that its program took, without the cache of compiled programs.
    temporary_bytes: that the program has beside its arguments and results.
    seconds: of one time, in each of its turns.
  """

  name: str
  take: Callable[[int], None]
  compile_seconds: float
  temporary_bytes: int
  seconds: list[float] = dataclasses.field(default_factory=list)

  @property
  def median(self) -> float:
    """Seconds of one time."""
    return statistics.median(self.seconds)


def prepare(name: str, function: Callable, *arguments: Any) -> Contender:
  """A function of fixed arguments, compiled."""
  program, seconds, memory = _compile(jax.jit(function), *arguments)

  def take(count: int) -> None:
    for _ in range(count):
      jax.block_until_ready(program(*arguments))

  return Contender(name, take, seconds, memory)


def prepare_step(name: str, config: Config) -> Contender:
  """A config's training step on one device, on one batch over and over."""
  batch = batch_of(config)
  state = jax.jit(lambda seed: init_state(config, seed))(jnp.uint32(0))
  step, seconds, memory = _compile(jax.jit(make_train_step(config), donate_argnums=0), state, batch)

  def take(count: int) -> None:
    nonlocal state
    for _ in range(count):
      state, _ = step(state, batch)
    jax.block_until_ready(state)

  return Contender(name, take, seconds, memory)


def _compile(jitted, *arguments) -> tuple[Callable, float, int]:
  lowered = jitted.lower(*arguments)
  started = time.perf_counter()
  program = lowered.compile()
  seconds = time.perf_counter() - started
  memory = program.memory_analysis()
  assert memory is not None
  return program, seconds, memory.temp_size_in_bytes


def take_turns(contenders: Sequence[Contender], turns: int, count: int) -> None:
  """Has each run so many times, one after the other, in so many turns; every second time in the opposite order."""
  for contender in contenders:
    contender.take(2)
  for turn in range(turns):
    for contender in contenders if turn % 2 else reversed(contenders):
      started = time.perf_counter()
      contender.take(count)
      contender.seconds.append((time.perf_counter() - started) / count)


def batch_of(config: Config) -> dict[str, np.ndarray]:
  """Random tokens."""
  shape = config.run.batch_size, config.data.sequence_length
  inputs, targets = np.random.default_rng(0).integers(config.model.vocab_size, size=(2, *shape), dtype=np.int32)
  return {'inputs_BT': inputs, 'targets_BT': targets, 'weights_BT': np.ones(shape, np.float32)}
