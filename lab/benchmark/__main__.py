"""Measures on this machine what training costs.

  python -m lab.benchmark                  step time, tokens a second, share of peak, compile time, memory
  python -m lab.benchmark --peers          the same work in PyTorch (pip install -r requirements-peers.txt)
  python -m lab.benchmark --inspection     what each level of inspection adds
  python -m lab.benchmark --growth         attention by length, compilation by depth

What is compared takes turns, so that a machine whose speed drifts slows all alike; medians, and ratios turn by turn.
"""

import os
import sys

from lab.cli import startup

if __name__ == '__main__':
  startup.prepare('lab.benchmark')  # before the imports below
  startup.check_jax('lab.benchmark')

import jax
from absl import flags
from rich.console import Console

from lab.cli import command_line
from lab.launch import devices
from training.memory import disable_async_dispatch

WHAT = {
  'peers': 'Measure the same work in PyTorch too.',
  'inspection': 'Measure what inspection adds, instead of the step itself.',
  'growth': 'Measure what grows with the length of a sequence, and with the number of layers.',
}
OWN = flags.FlagValues()
CHOSEN = [flags.DEFINE_bool(name, False, text, flag_values=OWN) for name, text in WHAT.items()]
TURNS = flags.DEFINE_integer('turns', 15, 'How often each takes its turn.', lower_bound=3, flag_values=OWN)
STEPS = flags.DEFINE_integer('steps', 5, 'With --inspection: steps in a turn.', lower_bound=1, flag_values=OWN)
SIZE = flags.DEFINE_multi_enum(
  'size', ['small', 'medium'], ['small', 'medium'], 'Which sizes; give it once for each.', flag_values=OWN
)
CORE = flags.DEFINE_integer(
  'core', None, 'With --inspection, --growth: the one core to run on. Default: all.', flag_values=OWN
)


def main(console: Console) -> int:
  """Measures and prints."""
  chosen = [flag.name for flag in CHOSEN if flag.value]
  if len(chosen) > 1:
    return command_line.report_error('benchmark', f'--{chosen[0]} and --{chosen[1]} are measured one at a time')
  if not chosen or chosen == ['peers']:
    from lab.benchmark import steps

    table = steps.peers_table if chosen else steps.speed_table
    console.print(table(SIZE.value, TURNS.value))
    return 0
  slot = devices.worker_slots(workers=1, whole_machine=True)[0]
  if not slot.environment.items() <= os.environ.items():  # as a run has it; it takes effect at the start of a process
    command = [sys.executable, '-m', 'lab.benchmark', *sys.argv[1:]]
    os.execve(sys.executable, command, os.environ | slot.environment)
  if CORE.value is not None:
    os.sched_setaffinity(0, {CORE.value})
  disable_async_dispatch()  # likewise
  jax.config.update('jax_enable_compilation_cache', False)  # a program from the cache takes no time to compile
  if chosen == ['inspection']:
    from lab.benchmark.inspection import inspection_table

    console.print(inspection_table(SIZE.value, TURNS.value, STEPS.value))
  else:
    from lab.benchmark.growth import attention_table, depth_table

    console.print(attention_table(TURNS.value))
    console.print(depth_table())
  return 0


if __name__ == '__main__':
  command_line.run_command('benchmark', main, OWN)
