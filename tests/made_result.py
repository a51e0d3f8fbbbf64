"""A made-up result of a run with every required field."""

from pathlib import Path
from typing import Any

from training.run_files.result import write_result

RESULT: dict[str, Any] = {
  'experiment': 'block', 'variant': 'baseline', 'seed': 0, 'status': 'completed', 'steps': 300, 'tokens': 4_915_200,
  'parameters': 431_000, 'flops_per_token': 3_100_000, 'learning_rate': 4e-3, 'val_loss': 2.0,
  'val_bits_per_byte': 2.885, 'test_loss': 2.1, 'test_bits_per_byte': 3.03, 'seconds': 12.5,
  'tokens_per_second': 393_216.0, 'diverged_at': None, 'unigram_entropy': 4.159, 'learning_rate_tuned': False,
  'data_checksum': 'b2c26b8719b188f5', 'resumed_at': None, 'init_from': None, 'extended_at': [], 'code_changed_at': [],
  'layout': '1 cpu device(s), 1 core(s)', 'device': 'cpu', 'versions': {'jax': '0.10.2'},
  'settings': {'jax_default_prng_impl': 'threefry2x32', 'XLA_FLAGS': None},
  'code': {'revision': 'a' * 40, 'digest': 'b' * 64, 'modified': False},
}  # fmt: skip
DIVERGED = dict.fromkeys(('val_loss', 'val_bits_per_byte', 'test_loss', 'test_bits_per_byte'))


def finish(directory: Path, status: str = 'completed', **changes) -> Path:
  """Writes result.json into a run's directory."""
  ended = {'status': status, **DIVERGED, 'diverged_at': 7} if status == 'diverged' else {'status': status}
  return write_result(directory, RESULT | ended | changes)
