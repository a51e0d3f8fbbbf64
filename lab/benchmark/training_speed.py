"""Measures training steps of both sizes on this machine, also in PyTorch."""

import importlib.util
from collections.abc import Sequence

from rich.table import Table

from lab.benchmark.cases import ENVIRONMENT, SIZES, tokens_per_step, training_case
from lab.benchmark.result_table import Row, result_table
from lab.benchmark.trials import Case, Result, run_trials
from model.counts import flops_per_token, num_parameters
from training import host
from training.config import Config, ConfigError

PRODUCT = 2048  # the side of the matrices whose product measures the peak FLOP/s
PEERS = {'PyTorch layers': 'encoder', 'x-transformers': 'x_transformers'}


def speed_table(sizes: Sequence[str], trials: int) -> Table:
  """For each size: one run on one core, on all cores, and on all cores as devices, and a run on each core."""
  cores = host.cores()
  one_core, all_cores = (cores[0],), (None,)
  cases = [_product('one core', one_core), _product('all cores', all_cores)]
  for size in sizes:
    config, device_count = SIZES[size], _device_count(SIZES[size], len(cores))
    cases += [
      training_case(f'{size}, one core', config, one_core),
      training_case(f'{size}, all cores', config, all_cores),
      training_case(f'{size}, all cores, {device_count} devices', config, all_cores, device_count),
      training_case(f'{size}, a run on each core', config, tuple(cores)),
    ]
  one, every, *results = run_trials(cases, trials)
  rows = []
  for result in results:
    config = SIZES[result.case.name.partition(',')[0]]
    tokens = tokens_per_step(config, result.case.cores)
    rows.append(
      Row(
        result,
        tokens=tokens,
        flops=tokens * flops_per_token(config.model, config.data.sequence_length),
        peak=_peak(one if result.case.cores == one_core else every),
      )
    )
  return result_table(
    f'training steps; peak: a float32 matrix product of side {PRODUCT}, {_peak(one) / 1e9:.0f} GFLOP/s on one core, '
    f'{_peak(every) / 1e9:.0f} on {len(cores)}',
    rows,
  )


def peers_table(sizes: Sequence[str], trials: int) -> Table:
  """Training steps of BlockLab and PyTorch (eager and compiled) on all cores.

  Raises:
    ConfigError: if PyTorch or x-transformers is not installed.
  """
  for library in ('torch', 'x_transformers'):
    if importlib.util.find_spec(library) is None:
      raise ConfigError(f'--peers needs {library}: pip install -r requirements-peers.txt')
  cores, rows = len(host.cores()), []
  for size in sizes:
    config = SIZES[size]
    device_count = _device_count(config, cores)
    ours = [
      training_case('BlockLab', config),
      training_case(f'BlockLab, {device_count} devices', config, device_count=device_count),
    ]
    theirs = [_peer(name, peer, config, compiled) for name, peer in PEERS.items() for compiled in (False, True)]
    results = run_trials([*ours, *theirs], trials)
    faster = min(results[:2], key=lambda result: result.median)
    for result in results:
      rows.append(
        Row(
          result,
          group=size if result is results[0] else '',
          reference=faster,
          parameters=result.facts.get('parameters', num_parameters(config.model)),
          tokens=tokens_per_step(config, result.case.cores),
        )
      )
  return result_table(f'training steps on {cores} cores; reference: the faster of the two BlockLab cases', rows)


def _device_count(config: Config, cores: int) -> int:
  """The largest number of devices, up to one per core, that divides the batch."""
  return max(count for count in range(1, cores + 1) if config.run.batch_size % count == 0)


def _product(name: str, cores: tuple[int | None, ...]) -> Case:
  return Case(name, {'product': PRODUCT}, cores=cores, environment=ENVIRONMENT)


def _peer(name: str, peer: str, config: Config, compiled: bool) -> Case:
  model = config.model
  task = {
    'peer': peer, 'compiled': compiled, 'layers': model.num_layers, 'width': model.d_model, 'heads': model.num_heads,
    'length': config.data.sequence_length, 'batch': config.run.batch_size, 'vocabulary': model.vocab_size,
  }  # fmt: skip
  name = f'{name}, compiled' if compiled else name
  return Case(name, task, 'lab.benchmark.torch_worker', environment=ENVIRONMENT)


def _peak(result: Result) -> float:
  """FLOP/s in the fastest trial."""
  return 2 * PRODUCT**3 / min(result.seconds)
