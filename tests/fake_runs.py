"""Writes the directories of fake experiments, with the files of training and invented numbers."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lab.core.experiment import Experiment
from model.counts import flops_per_token, num_parameters
from training.code_version import code_version
from training.config import Config
from training.files import write_sealed
from training.run_files.result import read_result, write_result

CHECKSUM = 'b2c26b8719b188f5'
NGRAM_BASELINES = {'unigram': 4.43, 'bigram': 3.34, 'trigram': 2.63}
BLOCK = Experiment(
  question='Which decision in the block matters?',
  variants={
    'baseline': {},
    'post_norm': {'model.connection': 'post'},
    'relu': {'model.feed_forward': 'relu'},
    'no_residual': {'model.attention_residual': 0.0, 'model.feed_forward_residual': 0.0},
  },
  name='block',
)
LEVELS = {'baseline': 2.9, 'post_norm': 2.8, 'relu': 3.0, 'no_residual': 4.43}


def write_experiment(
  directory: Path,
  experiment: Experiment = BLOCK,
  levels: dict[str, float] | None = None,
  statuses: dict[tuple[str, int], str] | None = None,
  finals: dict[tuple[str, int], float] | None = None,
  changes: dict | None = None,
  ngram_baselines: dict[str, float] | None = None,
  **options,
) -> Path:
  """Writes the runs of the variants in `levels`, for each seed, with final losses around the level of the variant.

  Args:
    directory: <workdir>/<experiment>.
    experiment: its variants and seeds.
    levels: final loss by variant, in bits per byte (in nats for a synthetic task).
    statuses: by (variant, seed), if not `completed`.
    finals: exact final losses by (variant, seed), instead of random ones around the level.
    changes: to the default config, in every run.
    ngram_baselines: bits per byte in yardsticks.json.
    **options: passed to write_run.
  """
  directory.mkdir(parents=True, exist_ok=True)
  content = {
    'data_checksum': CHECKSUM,
    'part': 0,
    'split': 'validation',
    'bits_per_byte': NGRAM_BASELINES if ngram_baselines is None else ngram_baselines,
  }
  write_sealed(directory / 'yardsticks.json', content)
  for variant, level in (LEVELS if levels is None else levels).items():
    for seed in experiment.seeds:
      rng = np.random.default_rng([seed, *variant.encode()])
      shared = np.random.default_rng(seed).normal(0, 0.02)  # the same for all variants of a seed
      final = level + shared + rng.normal(0, 0.012) if level < 4.4 else level + rng.normal(0, 0.001)
      default = 'completed' if level < 4.4 else 'failed_to_learn'
      status = (statuses or {}).get((variant, seed), default)
      seeds = {'run.init_seed': seed, 'data.seed': seed}
      config = Config().replace({**seeds, **(changes or {}), **experiment.variants[variant]})
      final = (finals or {}).get((variant, seed), final)
      write_run(directory / variant / f'seed_{seed}', experiment.name, variant, seed, status, config, final, **options)
  return directory


def write_run(
  directory: Path,
  experiment: str,
  variant: str,
  seed: int,
  status: str,
  config: Config,
  final: float,
  *,
  inspect: bool = True,
  parameters_logged: int = 0,
  points: int = 30,
  tuned: bool = False,
  test: float | None = None,
):
  """Writes config.json, metrics.jsonl and result.json of one run; a diverged run stops at 40% of its steps.

  `test` is the final loss on the test split, if it differs from that on the validation split.
  """
  directory.mkdir(parents=True, exist_ok=True)
  (directory / 'config.json').write_text(json.dumps(config.to_flat()))
  steps = config.run.steps if status != 'diverged' else config.run.steps * 2 // 5
  rng = np.random.default_rng([seed, len(variant)])
  evaluated = filter(config.run.is_evaluated, range(1, config.run.steps + 1))
  logged = sorted({1, *np.linspace(1, config.run.steps, points).astype(int).tolist(), *evaluated})
  lines = []
  for step in (step for step in logged if step <= steps):
    loss = _curve(step, config, final, rng)
    line = {'step': step, 'train/loss': loss * math.log(2), 'learning_rate': 4e-3, 'grad_norm/global': 1.0}
    if config.run.is_evaluated(step):
      line['validation/loss'] = loss if config.data.synthetic else loss * math.log(2)
      if not config.data.synthetic:
        line['validation/bits_per_byte'] = loss
    if inspect:
      line |= _stream(config, step, rng)
    line |= {f'grad_norm/parameter_{k}': float(rng.random()) for k in range(parameters_logged)}
    lines.append(line)
  if status == 'diverged':
    lines[-1]['train/loss'] = None
  (directory / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
  if status == 'diverged':
    final = loss  # the last finite value
  nats = final if config.data.synthetic else final * math.log(2)
  tokens = steps * config.run.batch_size * config.data.sequence_length
  bits = None if config.data.synthetic else final
  test = final if test is None else test
  result = {
    'experiment': experiment, 'variant': variant, 'seed': seed, 'status': status, 'steps': steps, 'tokens': tokens,
    'parameters': num_parameters(config.model),
    'flops_per_token': flops_per_token(config.model, config.data.sequence_length),
    'learning_rate': config.optimizer.learning_rate, 'val_loss': nats,
    'val_bits_per_byte': bits, 'test_bits_per_byte': None if bits is None else test,
    'test_loss': test if bits is None else test * math.log(2), 'seconds': 12.5,
    'tokens_per_second': tokens / 12.5, 'diverged_at': steps if status == 'diverged' else None,
    'learning_rate_tuned': tuned, 'layout': '1 device, 1 core', 'device': 'TFRT_CPU_0', 'unigram_entropy': 4.159,
    'data_checksum': CHECKSUM, 'versions': {'jax': '0.10.2', 'flax': '0.12.0', 'python': '3.12.3'},
    'settings': {'jax_default_prng_impl': 'threefry2x32'}, 'code': code_version(),
  }  # fmt: skip
  write_result(directory, result)


def edit_runs(
  directory: Path, variant: str, seeds: Iterable[int], config: dict | None = None, result: dict | None = None
) -> None:
  """Edits the config and the result of runs, as if they had been trained with other settings."""
  for seed in seeds:
    run = directory / variant / f'seed_{seed}'
    flat = json.loads((run / 'config.json').read_text()) | (config or {})
    (run / 'config.json').write_text(json.dumps(flat))
    edited = (read_result(run) or {}) | (result or {})
    write_result(run, edited | {'steps': flat['run.steps'], 'learning_rate': flat['optimizer.learning_rate']})


def _curve(step, config, final, rng):
  start = 6.5
  return (
    final + (start - final) * math.exp(-6 * step / config.run.steps) + rng.normal(0, 0.006) * (step < config.run.steps)
  )


def _stream(config, step, rng):
  """Total stream gradients: flat for pre-norm, decreasing towards the input for post-norm, tiny without residual."""
  decay = {'post': 0.93, 'pre': 0.99}.get(config.model.connection, 0.97)
  if config.model.attention_residual == 0:
    decay = 0.6
  values, layers = {}, config.model.num_layers
  for block in range(layers):
    for half, sublayer in enumerate(('attention', 'feed_forward')):
      total = 0.7 * decay ** (2 * (layers - block) - half) * math.exp(rng.normal(0, 0.05)) * (1 + step / 600)
      name = f'stream_gradient/block_{block:02d}/{sublayer}'
      values |= {
        f'{name}/total': total,
        f'{name}/skip': 0.8 * total,
        f'{name}/branch': 0.5 * total,
        f'{name}/cosine': 0.1,
      }
  return values | {'stream_gradient/output/total': 0.7}
