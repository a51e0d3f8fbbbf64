"""Measures time and memory of training on this machine.

  python -m lab.benchmark                  step time, tokens per second, share of peak FLOP/s, compile time, memory
  python -m lab.benchmark --peers          comparison with PyTorch (pip install -r requirements-peers.txt)
  python -m lab.benchmark --inspection     overhead of each inspection level
  python -m lab.benchmark --growth         attention by sequence length, compile time by depth
  python -m lab.benchmark --designs        cost of each residual design, relative to pre-norm

The programs to compare run in alternating trials, so that a drift in the speed of the machine affects all of
them equally. Prints medians over the trials, and medians of the ratios within each trial.
"""

from lab.cli import startup

if __name__ == '__main__':
  startup.prepare('lab.benchmark')  # before the imports below
  startup.check_jax('lab.benchmark')

from absl import flags
from rich.console import Console

from lab.benchmark.designs import designs_table
from lab.benchmark.inspection_overhead import inspection_table
from lab.benchmark.scaling import attention_table, compilation_table
from lab.benchmark.training_speed import peers_table, speed_table
from lab.cli import command_line
from training import host

BENCHMARKS = {
  'peers': 'Compare training steps with the same work in PyTorch.',
  'inspection': 'Measure the overhead of inspection.',
  'growth': 'Measure attention by sequence length, and compilation by the number of layers.',
  'designs': 'Measure training steps of each residual design, relative to pre-norm.',
}
FLAGS = flags.FlagValues()
SELECTED = [flags.DEFINE_bool(name, False, text, flag_values=FLAGS) for name, text in BENCHMARKS.items()]
TRIALS = flags.DEFINE_integer('turns', 15, 'The number of alternating trials.', lower_bound=3, flag_values=FLAGS)
STEPS = flags.DEFINE_integer('steps', 5, 'With --inspection: steps per trial.', lower_bound=1, flag_values=FLAGS)
SIZE = flags.DEFINE_multi_enum(
  'size', ['small', 'medium'], ['small', 'medium'], 'Model sizes to measure.', flag_values=FLAGS
)
CORE = flags.DEFINE_integer(
  'core',
  None,
  'With --inspection, --growth or --designs: the single core to use. Default: all cores.',
  flag_values=FLAGS,
)
CONNECTIONS = flags.DEFINE_list(
  'connections', [], 'With --designs: settings of model.connection to measure. Default: all.', flag_values=FLAGS
)


def main(console: Console) -> int:
  """Runs one benchmark, and prints its tables."""
  selected = [flag.name for flag in SELECTED if flag.value]
  if len(selected) > 1:
    return command_line.report_error(
      'benchmark', f'--{selected[0]} and --{selected[1]} are separate benchmarks: pass one'
    )
  if CORE.value is not None and CORE.value not in host.cores():
    return command_line.report_error('benchmark', f'--core={CORE.value}: this process may use the cores {host.cores()}')
  if selected == ['peers']:
    console.print(peers_table(SIZE.value, TRIALS.value))
  elif selected == ['inspection']:
    console.print(inspection_table(SIZE.value, TRIALS.value, STEPS.value, CORE.value))
  elif selected == ['growth']:
    console.print(attention_table(TRIALS.value, CORE.value))
    console.print(compilation_table(CORE.value))
  elif selected == ['designs']:
    console.print(designs_table(SIZE.value, TRIALS.value, CORE.value, CONNECTIONS.value))
  else:
    console.print(speed_table(SIZE.value, TRIALS.value))
  return 0


if __name__ == '__main__':
  command_line.run_command('benchmark', main, FLAGS)
