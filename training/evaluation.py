"""Evaluation: mean losses over held-out sequences, and the result of a run."""

import math
from typing import Any

from model.counts import flops_per_token, num_parameters
from training.config import Config
from training.data.evaluation_subset import evaluation_subset
from training.data.loading import Data
from training.data.ngrams import unigram_entropy
from training.metric_names import VALIDATION_BITS, VALIDATION_LOSS
from training.scoring import Scoring
from training.state import State
from training.step import has_diverged

FAILED_TO_LEARN = 0.99  # share of the unigram entropy: a model with a higher loss does not use the context


def validate(config: Config, data: Data, scoring: Scoring) -> dict[str, float]:
  """A point of the validation curve, on a fixed subset: `validation/loss` and, for text, `validation/bits_per_byte`.

  Raises:
    Stopped: see training/scoring.py.
  """
  sequences = config.run.evaluation_batches * config.run.batch_size
  loss = scoring.mean_loss('validation curve', data.validation, sequences)
  bits = data.bits_per_byte(loss, 'validation')
  return {VALIDATION_LOSS: loss} | ({} if bits is None else {VALIDATION_BITS: bits})


def result_of(config: Config, state: State, data: Data, scoring: Scoring) -> dict[str, Any]:
  """The result of a finished run: its losses on the held-out splits, or on a subset of each (evaluation_subset.py).

  Raises:
    Stopped: see training/scoring.py.
  """
  steps, nonfinite = int(state.step), int(state.nonfinite_in_a_row)
  diverged_at = steps - nonfinite + 1 if has_diverged(config, nonfinite) else None
  validation, test = (
    evaluation_subset(data, split, config.run.final_evaluation_tokens) for split in ('validation', 'test')
  )
  entropy = unigram_entropy(validation.dataset)
  val_loss, test_loss = (
    None if diverged_at else scoring.mean_loss(split, part.dataset)
    for split, part in (('validation', validation), ('test', test))
  )
  if val_loss is not None and test_loss is not None and not math.isfinite(val_loss + test_loss):
    val_loss, test_loss, diverged_at = None, None, steps  # the last update diverged; no step followed to detect it
  if val_loss is None:
    status = 'diverged'
  else:
    status = 'failed_to_learn' if val_loss >= FAILED_TO_LEARN * entropy else 'completed'
  return {
    'status': status,
    'steps': steps,
    'tokens': steps * config.run.batch_size * config.data.sequence_length,
    'parameters': num_parameters(config.model),
    'flops_per_token': flops_per_token(config.model, config.data.sequence_length),
    'learning_rate': config.optimizer.learning_rate,
    'val_loss': val_loss,
    'val_bits_per_byte': None if val_loss is None else validation.bits_per_byte(val_loss),
    'test_loss': test_loss,
    'test_bits_per_byte': None if test_loss is None else test.bits_per_byte(test_loss),
    'diverged_at': diverged_at,
    'unigram_entropy': entropy,
    'final_evaluation_tokens': config.run.final_evaluation_tokens,
    'val_tokens': None if val_loss is None else validation.tokens,
    'val_tokens_of': validation.split_tokens,
    'test_tokens': None if test_loss is None else test.tokens,
    'test_tokens_of': test.split_tokens,
    **({'dropped_updates': steps - int(state.optimizer[-1].count)} if config.run.on_nonfinite == 'skip' else {}),
    'data_checksum': data.checksum,
    **({'text_checksum': data.corpus.text_checksum} if data.corpus else {}),
    **({'evaluated_weights': f'ema {config.optimizer.ema:g}'} if config.optimizer.ema else {}),
  }
