"""Memory on a CPU: how XLA's programs allocate it, returning it to the system, and whether a run can fit."""

import ctypes
import os
import sys
from pathlib import Path

import jax

from model.counts import num_parameters
from training.config import Config, ConfigError


def release_freed_memory() -> None:
  """Returns memory freed after compilation to the system: about 200 MB that the heap would otherwise keep."""
  trim = getattr(ctypes.CDLL(None), 'malloc_trim', None) if sys.platform == 'linux' else None  # only glibc has it
  if trim is not None:
    trim(0)


def disable_async_dispatch() -> None:
  """Runs a CPU's programs on the calling thread, one at a time; call it before JAX initialises its backend.

  A program that is dispatched while another one runs already has its buffers, which doubles the memory. Moreover, a
  thread of XLA allocates them, and its glibc heap has no blocks above 64 MB: it would map them, fault in their pages
  and unmap them at every step. On a GPU or TPU, and for programs on several devices, this changes nothing.
  """
  jax.config.update('jax_cpu_enable_async_dispatch', False)  # there is no environment variable for it


def check_fits(config: Config, available: int | None = None) -> None:
  """Raises ConfigError if a training step on the CPU needs more memory than this machine has.

  Args:
    config: the run's config.
    available: memory in bytes; None: that of the machine, or of the control group of this process.
  """
  have, need = available or memory_of_machine(), least_memory(config)
  if need > have:
    raise ConfigError(
      f'{num_parameters(config.model):,} parameters and a batch of {config.run.batch_size:,} x '
      f'{config.data.sequence_length:,} tokens take at least {need / 1e9:,.1f} GB, and this machine has '
      f'{have / 1e9:,.1f} GB: make the model, run.batch_size or data.sequence_length smaller'
    )


def least_memory(config: Config) -> int:
  """A lower bound on the bytes that a training step needs, all in float32.

  It counts the parameters, their gradient, the moments of the optimizer, the tokens and, of the activations, only the
  logits of one of the `accumulate` parts of the batch.
  """
  moments = 2 if config.optimizer.name == 'adamw' else 1
  state = num_parameters(config.model) * (2 + moments)
  tokens = config.run.batch_size * config.data.sequence_length
  return 4 * (state + tokens // config.optimizer.accumulate * config.model.vocab_size + 3 * tokens)


def memory_of_machine(groups: Path = Path('/sys/fs/cgroup')) -> int:
  """Bytes of memory of this machine, or of the container of this process, if that has less."""
  found = [os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')]
  for name in ('memory.max', 'memory/memory.limit_in_bytes'):
    path = groups / name
    text = path.read_text().strip() if path.is_file() else ''
    found += [int(text)] if text.isdecimal() else []
  return min(found)
