"""Measures on this machine what a training step costs, and what inspection adds to it.

  python -m experiments.benchmark                  both sizes: step time, tokens a second, share of peak, compile time
  python -m experiments.benchmark --inspection     what each level of inspection adds, measured side by side

What is compared takes turns in one process, a few steps each, so that a machine whose speed drifts slows both alike;
medians, and the ratio of each pair of turns.
"""

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments import command_line, machine
from model import ModelConfig
from training.config import Config, DataConfig, RunConfig
from training.step import init_state, make_train_step

INSPECTION = flags.DEFINE_bool('inspection', False, 'Measure what inspection adds, instead of the step itself.')
TURNS = flags.DEFINE_integer('turns', 20, 'How often each takes its turn.', lower_bound=3)
STEPS = flags.DEFINE_integer('steps', 5, 'Steps in a turn.', lower_bound=1)
SIZE = flags.DEFINE_multi_enum('size', ['small', 'medium'], ['small', 'medium'], 'Which sizes; give it once for each.')
CORE = flags.DEFINE_integer('core', None, 'The one core to run on, as each run of an experiment has. Default: all.')

SIZES = {
  'small': Config(  # the default experiments'
    model=ModelConfig(num_layers=12, d_model=64, num_heads=4, unroll=12), run=RunConfig(steps=300, batch_size=16)
  ),
  'medium': Config(
    model=ModelConfig(num_layers=6, d_model=256, num_heads=8, num_positions=256, unroll=6),
    data=DataConfig(sequence_length=256),
    run=RunConfig(steps=300, batch_size=16),
  ),
}
# What is compared with `off`. At a logged step the norms of each parameter are computed too: 1 step in 10 by default.
LEVELS: Mapping[str, dict[str, Any]] = {
  'off': {'inspect.level': 'off'},
  'norms, between logged steps': {'inspect.level': 'norms', 'run.log_every': 10**9},
  'norms, every step logged': {'inspect.level': 'norms', 'run.log_every': 1},
  'full, every step logged': {'inspect.level': 'full', 'run.log_every': 1},
}


@dataclasses.dataclass
class Contender:
  """A compiled step, its state, and the seconds a step took in each of its turns."""

  name: str
  config: Config
  step: Callable
  state: Any
  compile_seconds: float
  temporary_bytes: int
  seconds: list[float] = dataclasses.field(default_factory=list)

  @property
  def median(self) -> float:
    """Seconds a step."""
    return statistics.median(self.seconds)

  @property
  def tokens_per_second(self) -> float:
    """At the median."""
    return self.config.run.batch_size * self.config.data.sequence_length / self.median

  @property
  def flops_per_second(self) -> float:
    """Model FLOPs, at the median."""
    return self.tokens_per_second * self.config.model.flops_per_token(self.config.data.sequence_length)


def prepare(name: str, config: Config) -> Contender:
  """Compiles a config's step, without the cache of compiled programs, and takes it once."""
  state = jax.jit(lambda seed: init_state(config, seed))(jnp.uint32(0))
  lowered = jax.jit(make_train_step(config), donate_argnums=0).lower(state, batch_of(config))
  started = time.perf_counter()
  step = lowered.compile()
  compile_seconds = time.perf_counter() - started
  memory = step.memory_analysis()
  assert memory is not None
  contender = Contender(name, config, step, state, compile_seconds, memory.temp_size_in_bytes)
  take_steps(contender, 2)
  return contender


def take_turns(contenders: Sequence[Contender], turns: int, steps: int) -> None:
  """Has each take its steps, one after the other, so many times; every second time in the opposite order."""
  for turn in range(turns):
    for contender in contenders if turn % 2 else reversed(contenders):
      started = time.perf_counter()
      take_steps(contender, steps)
      contender.seconds.append((time.perf_counter() - started) / steps)


def take_steps(contender: Contender, count: int) -> None:
  """Training steps on one batch; returns when the device is done."""
  batch = batch_of(contender.config)
  for _ in range(count):
    contender.state, _ = contender.step(contender.state, batch)
  jax.block_until_ready(contender.state)


def batch_of(config: Config) -> dict[str, np.ndarray]:
  """Random tokens."""
  shape = config.run.batch_size, config.data.sequence_length
  inputs, targets = np.random.default_rng(0).integers(config.model.vocab_size, size=(2, *shape), dtype=np.int32)
  return {'inputs_BT': inputs, 'targets_BT': targets, 'weights_BT': np.ones(shape, np.float32)}


def peak(size: int = 2048, times: int = 5) -> float:
  """FLOPs a second of the best of several large float32 matrix products."""
  a = jax.random.normal(jax.random.key(0), (size, size))
  product = jax.jit(jnp.matmul).lower(a, a).compile()
  seconds = []
  for _ in range(times):
    started = time.perf_counter()
    jax.block_until_ready(product(a, a))
    seconds.append(time.perf_counter() - started)
  return 2 * size**3 / min(seconds)


def main(console: Console) -> int:
  """Measures and prints."""
  place = machine.worker_places(workers=1, whole_machine=True)[0]
  if not place.environment.items() <= os.environ.items():  # as a run has it; it takes effect at the start of a process
    command = [sys.executable, '-m', 'experiments.benchmark', *sys.argv[1:]]
    os.execve(sys.executable, command, os.environ | place.environment)
  if CORE.value is not None:
    os.sched_setaffinity(0, {CORE.value})
  jax.config.update('jax_enable_compilation_cache', False)  # a program from the cache takes no time to compile
  console.print(inspection_table() if INSPECTION.value else speed_table())
  return 0


def speed_table() -> Table:
  """Step time and what follows from it, at both sizes."""
  contenders = [prepare(name, config) for name, config in SIZES.items() if name in SIZE.value]
  peaks = [peak()]
  take_turns(contenders, TURNS.value, STEPS.value)
  peaks.append(peak())
  view = _table(f'a training step; peak: a product of 2048 x 2048, {max(peaks) / 1e9:.0f} GFLOP/s')
  for column in (
    'size',
    'layers x width',
    'ms a step',
    'tokens/s',
    'GFLOP/s',
    'of peak',
    'compile s',
    'temporaries MB',
  ):
    view.add_column(column, justify='left' if column == 'size' else 'right')
  for one in contenders:
    view.add_row(
      one.name,
      f'{one.config.model.num_layers} x {one.config.model.d_model}',
      f'{one.median * 1e3:.1f}',
      f'{one.tokens_per_second:,.0f}',
      f'{one.flops_per_second / 1e9:.1f}',
      f'{one.flops_per_second / max(peaks):.0%}',
      f'{one.compile_seconds:.1f}',
      f'{one.temporary_bytes / 1e6:.0f}',
    )
  return view


def inspection_table() -> Table:
  """What each level adds to a step of either size: time, by pairs of turns, and memory."""
  view = _table('what inspection adds to a training step, compared with inspect.level=off')
  for column in ('size', 'level', 'ms a step', 'added', 'half of the turns', 'temporaries MB', 'added '):
    view.add_column(column, justify='left' if column in ('size', 'level') else 'right')
  for size in SIZE.value:
    config = SIZES[size]
    contenders = [prepare(level, config.replace(changes)) for level, changes in LEVELS.items()]
    take_turns(contenders, TURNS.value, STEPS.value)
    off = contenders[0]
    for one in contenders:
      ratios = np.array(one.seconds) / off.seconds - 1
      low, middle, high = np.percentile(ratios, [25, 50, 75])
      more = one.temporary_bytes / off.temporary_bytes - 1
      added = ['', '', f'{one.temporary_bytes / 1e6:.1f}', '']
      if one is not off:
        added = [f'{middle:+.1%}', f'{low:+.1%} to {high:+.1%}', f'{one.temporary_bytes / 1e6:.1f}', f'{more:+.1%}']
      view.add_row(size if one is off else '', one.name, f'{one.median * 1e3:.1f}', *added)
    between, logged = (np.median(np.array(one.seconds) / off.seconds - 1) for one in contenders[1:3])
    view.add_row('', 'norms, 1 step in 10 logged', '', f'{between + (logged - between) / 10:+.1%}', '', '', '')
  return view


def _table(title: str) -> Table:
  return Table(title=Text(title), title_justify='left', box=box.SIMPLE_HEAD, pad_edge=False)


if __name__ == '__main__':
  command_line.run('benchmark', main)
