"""How good a model is: mean losses over held-out sequences, and the result of a run."""

import importlib.metadata
import os
from typing import Any

import jax
import numpy as np

from training.config import Config
from training.data import Data, evaluation_batches
from training.ngrams import unigram_entropy
from training.programs import Programs, evaluation_size
from training.sources import Source
from training.step import State

FAILED_TO_LEARN = 0.99  # of the unigram entropy: a loss above it has made no use of context
MOST_SKIPPED = 10  # updates in a row, with on_nonfinite=skip


def evaluate(config: Config, programs: Programs, params, source: Source, sequences: int | None = None) -> float:
  """Mean loss in nats over the scored tokens of a split, or of `sequences` of it, evenly spread."""
  batches = evaluation_batches(source, evaluation_size(config), sequences)
  sums = jax.device_get([programs.evaluation_step(params, batch) for batch in batches])
  return float(np.sum([nats for nats, _ in sums], dtype=float) / np.sum([scored for _, scored in sums], dtype=float))


def validate(config: Config, programs: Programs, params, data: Data) -> dict[str, float]:
  """A point of the validation curve, on its fixed subset: `validation/loss`, and bits a byte where there are bytes."""
  sequences = config.run.evaluation_batches * config.run.batch_size
  loss = evaluate(config, programs, params, data.validation, sequences)
  bits = data.bits_per_byte(loss, 'validation')
  return {'validation/loss': loss} | ({} if bits is None else {'validation/bits_per_byte': bits})


def has_diverged(config: Config, nonfinite_in_a_row: int) -> bool:
  """Whether so many steps in a row whose loss or gradient is not finite end the run."""
  return nonfinite_in_a_row >= (1 if config.run.on_nonfinite == 'stop' else MOST_SKIPPED)


def result_of(config: Config, programs: Programs, state: State, data: Data) -> dict[str, Any]:
  """What a run that has ended has come to; both held-out splits are scored whole, unless it diverged."""
  steps, nonfinite = int(state.step), int(state.nonfinite_in_a_row)
  diverged = has_diverged(config, nonfinite)
  entropy = unigram_entropy(data.validation)
  val_loss, test_loss = (
    None if diverged else evaluate(config, programs, state.params, split) for split in (data.validation, data.test)
  )
  if val_loss is None:
    status = 'diverged'
  else:
    status = 'failed_to_learn' if val_loss >= FAILED_TO_LEARN * entropy else 'completed'
  return {
    'status': status,
    'steps': steps,
    'tokens': steps * config.run.batch_size * config.data.sequence_length,
    'parameters': config.model.num_parameters,
    'flops_per_token': config.model.flops_per_token(config.data.sequence_length),
    'learning_rate': config.optimizer.learning_rate,
    'learning_rate_tuned': False,  # every variant runs at the rate it is given
    'val_loss': val_loss,
    'val_bits_per_byte': None if val_loss is None else data.bits_per_byte(val_loss, 'validation'),
    'test_loss': test_loss,
    'test_bits_per_byte': None if test_loss is None else data.bits_per_byte(test_loss, 'test'),
    'diverged_at': steps - nonfinite + 1 if diverged else None,
    'unigram_entropy': entropy,
    'data_checksum': data.checksum,
    'layout': layout(),
    'device': jax.devices()[0].device_kind,
    'versions': {name: importlib.metadata.version(name) for name in ('jax', 'flax', 'optax', 'numpy')},
  }


def layout() -> str:
  """The devices and cores of this process: the same run on another layout may differ in its last bits."""
  cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
  return f'{jax.device_count()} {jax.default_backend()} device(s), {cores} core(s)'
