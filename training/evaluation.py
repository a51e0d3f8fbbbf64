"""How good a model is: mean losses over held-out sequences, and the result of a run."""

import math
from typing import Any

import jax
import numpy as np

from training.config import Config
from training.data import Data, evaluation_batches
from training.mesh import own_rows
from training.ngrams import unigram_entropy
from training.programs import Programs, evaluation_size
from training.sources import Source
from training.step import State, has_diverged

FAILED_TO_LEARN = 0.99  # of the unigram entropy: a loss above it has made no use of context


def evaluate(config: Config, programs: Programs, params, source: Source, sequences: int | None = None) -> float:
  """Mean loss in nats over the scored tokens of a split, or of `sequences` of it, evenly spread."""
  size = evaluation_size(config, programs.mesh.size)
  batches = evaluation_batches(source, size, sequences, own_rows(programs.mesh, size))
  sums = jax.device_get([programs.evaluation_step(params, batch) for batch in batches])
  return float(np.sum([nats for nats, _ in sums], dtype=float) / np.sum([scored for _, scored in sums], dtype=float))


def validate(config: Config, programs: Programs, params, data: Data) -> dict[str, float]:
  """A point of the validation curve, on its fixed subset: `validation/loss`, and bits a byte where there are bytes."""
  sequences = config.run.evaluation_batches * config.run.batch_size
  loss = evaluate(config, programs, params, data.validation, sequences)
  bits = data.bits_per_byte(loss, 'validation')
  return {'validation/loss': loss} | ({} if bits is None else {'validation/bits_per_byte': bits})


def result_of(config: Config, programs: Programs, state: State, data: Data) -> dict[str, Any]:
  """What a run that has ended has come to; both held-out splits are scored whole, unless it diverged."""
  steps, nonfinite = int(state.step), int(state.nonfinite_in_a_row)
  diverged_at = steps - nonfinite + 1 if has_diverged(config, nonfinite) else None
  entropy = unigram_entropy(data.validation)
  val_loss, test_loss = (
    None if diverged_at else evaluate(config, programs, state.params, split) for split in (data.validation, data.test)
  )
  if val_loss is not None and test_loss is not None and not math.isfinite(val_loss + test_loss):
    val_loss, test_loss, diverged_at = None, None, steps  # the last update went too far, and no step came to see it
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
    'val_loss': val_loss,
    'val_bits_per_byte': None if val_loss is None else data.bits_per_byte(val_loss, 'validation'),
    'test_loss': test_loss,
    'test_bits_per_byte': None if test_loss is None else data.bits_per_byte(test_loss, 'test'),
    'diverged_at': diverged_at,
    'unigram_entropy': entropy,
    'data_checksum': data.checksum,
  }
