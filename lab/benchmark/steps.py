"""Training steps of both sizes on this machine, and PyTorch's at the same work."""

import importlib.util
from collections.abc import Sequence

from rich.table import Table

from lab.benchmark.racing import Entry, Result, race
from lab.benchmark.sizes import SIZES
from lab.cli.tables import new_table
from lab.launch import devices
from model.counts import flops_per_token, num_parameters
from training import host
from training.config import Config, ConfigError

PRODUCT = 2048  # the side of the matrices whose product is the peak
ENVIRONMENT = devices.cpu_environment(several=False)  # as runs have it; PyTorch has the same heaps
PEERS = {'PyTorch layers': 'encoder', 'x-transformers': 'x_transformers'}


def speed_table(sizes: Sequence[str], turns: int) -> Table:
  """One run on one core, on all cores, with a device a core, and a run on each core, of each size."""
  cores = host.cores()
  core, everything = (cores[0],), (None,)
  entries = [_product('one core', core), _product('all cores', everything)]
  for size in sizes:
    devices = _devices(SIZES[size], len(cores))
    entries += [
      _steps(f'{size}, one core', SIZES[size], core),
      _steps(f'{size}, all cores', SIZES[size], everything),
      _steps(f'{size}, all cores, {devices} devices', SIZES[size], everything, devices),
      _steps(f'{size}, a run on each core', SIZES[size], tuple(cores)),
    ]
  one, every, *results = race(entries, turns)
  columns = ('', 'ms a step', 'tokens/s', 'GFLOP/s', 'of peak', 'compile s', 'temp. MB', 'memory MB')
  table = new_table(
    f'training steps; peak: a float32 product of side {PRODUCT}, {_peak(one) / 1e9:.0f} GFLOP/s on one core, '
    f'{_peak(every) / 1e9:.0f} on {len(cores)};\ntemp.: beside the state; memory: the most that a process had',
    columns,
  )
  for result in results:
    config = SIZES[result.entry.name.partition(',')[0]]
    tokens = _tokens_per_second(result, config)
    flops = tokens * flops_per_token(config.model, config.data.sequence_length)
    table.add_row(
      result.entry.name,
      f'{result.median * 1e3:.1f}',
      f'{tokens:,.0f}',
      f'{flops / 1e9:.1f}',
      f'{flops / _peak(one if result.entry.cores == core else every):.0%}',
      f'{result.about["compile_seconds"]:.1f}',
      f'{result.about["temporary_bytes"] / 1e6:.0f}',
      f'{result.peak_bytes / 1e6:.0f}',
    )
  return table


def peers_table(sizes: Sequence[str], turns: int) -> Table:
  """BlockLab and PyTorch at the same work on all cores; eager and compiled.

  Raises:
    ConfigError: if PyTorch, or the library of a peer, is not installed.
  """
  for library in ('torch', 'x_transformers'):
    if importlib.util.find_spec(library) is None:
      raise ConfigError(f'--peers needs {library}: pip install -r requirements-peers.txt')
  cores = len(host.cores())
  table = new_table(
    f'training steps on {cores} cores, and how long each takes beside the quicker of BlockLab; memory: the most it had',
    ('', '', 'parameters', 'ms a step', 'tokens/s', 'times', 'memory MB'),
    left=2,
  )
  for size in sizes:
    config = SIZES[size]
    devices = _devices(config, cores)
    ours = [_steps('BlockLab', config, (None,)), _steps(f'BlockLab, {devices} devices', config, (None,), devices)]
    theirs = [_peer(name, peer, config, compiled) for name, peer in PEERS.items() for compiled in (False, True)]
    results = race([*ours, *theirs], turns)
    quicker = min(results[:2], key=lambda result: result.median)
    for result in results:
      table.add_row(
        size if result is results[0] else '',
        result.entry.name,
        f'{result.about.get("parameters", num_parameters(config.model)):,}',
        f'{result.median * 1e3:.1f}',
        f'{_tokens_per_second(result, config):,.0f}',
        f'x{result.over(quicker):.2f}',
        f'{result.peak_bytes / 1e6:.0f}',
      )
  return table


def _devices(config: Config, cores: int) -> int:
  """As many as there are cores, if the batch divides over them."""
  return max(count for count in range(1, cores + 1) if config.run.batch_size % count == 0)


def _product(name: str, cores: tuple[int | None, ...]) -> Entry:
  return Entry(name, {'product': PRODUCT}, cores=cores, environment=ENVIRONMENT)


def _steps(name: str, config: Config, cores: tuple[int | None, ...], device_count: int = 1) -> Entry:
  config = config.replace({'mesh.data': device_count})
  environment = devices.cpu_environment(several=device_count > 1) | {'JAX_NUM_CPU_DEVICES': str(device_count)}
  return Entry(name, {'config': config.to_flat()}, cores=cores, environment=environment)


def _peer(name: str, peer: str, config: Config, compiled: bool) -> Entry:
  model = config.model
  work = {
    'peer': peer, 'compiled': compiled, 'layers': model.num_layers, 'width': model.d_model, 'heads': model.num_heads,
    'length': config.data.sequence_length, 'batch': config.run.batch_size, 'vocabulary': model.vocab_size,
  }  # fmt: skip
  name = f'{name}, compiled' if compiled else name
  return Entry(name, work, 'lab.benchmark.torch_racer', environment=ENVIRONMENT)


def _peak(result: Result) -> float:
  """FLOPs a second of the best turn."""
  return 2 * PRODUCT**3 / min(result.seconds)


def _tokens_per_second(result: Result, config: Config) -> float:
  """At the median, of all its processes."""
  return len(result.entry.cores) * config.run.batch_size * config.data.sequence_length / result.median
