"""Runs that take a second, and how to compare them."""

import functools
import json
from pathlib import Path

import jax
import numpy as np

from model.config import ModelConfig
from training import loop, programs
from training.config import Config, DataConfig, OptimizerConfig, RunConfig
from training.run_files.checkpoint import load_checkpoint, steps_in
from training.run_files.result import read_result

CONFIG = Config(
  model=ModelConfig(num_layers=1, d_model=8, num_heads=2, d_ff=12),
  data=DataConfig(task='files', paths='text.txt', sequence_length=8),
  optimizer=OptimizerConfig(learning_rate=5e-2, warmup_steps=4),
  run=RunConfig(
    steps=40, batch_size=4, log_every=15, evaluations=4, evaluation_batches=3, checkpoint_every=12, keep_checkpoints=2
  ),
)
LOGGED, EVALUATED = [1, 15, 30, 40], [10, 20, 30, 40]
QUICK = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)
LABELS = {'experiment': 'block', 'variant': 'baseline', 'seed': 0}
EASY = b''.join(np.random.default_rng(0).choice([b'abcd', b'efgh'], 800).tolist())
RANDOM = np.random.default_rng(0).integers(128, 256, 3200, np.uint8).tobytes()


def train(directory: Path, config: Config = CONFIG, **settings):
  return loop.train(config, directory, LABELS, **settings)


def rows_of(directory: Path) -> list[dict]:
  return [json.loads(line) for line in (directory / 'metrics.jsonl').read_text().splitlines()]


def final_state(directory: Path, config: Config = CONFIG):
  """The newest checkpoint."""
  folder = directory / 'checkpoints'
  return load_checkpoint(folder / str(steps_in(folder)[0]), programs.programs_for(config).init(np.uint32(0)))[0]


def same_bits(one, other) -> bool:
  pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def assert_same_run(directory: Path, other: Path, config: Config = CONFIG) -> None:
  assert (directory / 'metrics.jsonl').read_bytes() == (other / 'metrics.jsonl').read_bytes()
  assert same_bits(final_state(directory, config), final_state(other, config))
  results = [read_result(path) or {} for path in (directory, other)]
  for result in results:
    for name in ('seconds', 'train_seconds', 'tokens_per_second', 'resumed_at'):
      del result[name]
  assert results[0] == results[1]


class Stop(BaseException):
  """Raised by a test to kill a run at a given point."""


def stop_at(step: int):
  def report(progress):
    if progress.get('step') == step:
      raise Stop

  return report


def content_of(folder: Path) -> dict[str, bytes]:
  return {str(path): path.read_bytes() for path in folder.rglob('*') if path.is_file()}
