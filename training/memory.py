"""Memory on a CPU: where XLA's programs have it from, what they leave of it, and whether a run can fit it at all."""

import ctypes
import os
import sys
from pathlib import Path

import jax

from model.counts import num_parameters
from training.config import Config, ConfigError


def release_freed_memory() -> None:
  """Gives what compiling has used and freed back to the system: 200 MB, which the heap of a worker would keep."""
  trim = getattr(ctypes.CDLL(None), 'malloc_trim', None) if sys.platform == 'linux' else None  # glibc has it
  if trim is not None:
    trim(0)


def disable_async_dispatch() -> None:
  """Has a CPU's programs run on the thread that calls them, one at a time; to be called before JAX has a backend.

  One that is dispatched while another runs has its buffers already, which is twice the memory. And it has them from a
  thread of XLA's, whose own heap holds nothing over 64 MB: glibc would map them, fault their pages in and give them
  back at every step. Elsewhere than on a CPU, and for programs on several devices, this changes nothing.
  """
  jax.config.update('jax_cpu_enable_async_dispatch', False)  # JAX reads no environment variable for it


def check_fits(config: Config, available: int | None = None) -> None:
  """Raises ConfigError if a step on this machine's CPU cannot fit its memory, whatever is compiled.

  Args:
    config: of the run.
    available: bytes; None: what the machine, or the control group of this process, has.
  """
  have, need = available or memory_of_machine(), least_memory(config)
  if need > have:
    raise ConfigError(
      f'{num_parameters(config.model):,} parameters and a batch of {config.run.batch_size:,} x '
      f'{config.data.sequence_length:,} tokens take at least {need / 1e9:,.1f} GB, and this machine has '
      f'{have / 1e9:,.1f} GB: make the model, run.batch_size or data.sequence_length smaller'
    )


def least_memory(config: Config) -> int:
  """Bytes that a training step holds, at the very least, all in float32.

  Parameters, their gradient and the optimizer's averages; of the activations the logits of the part of the batch that
  is taken at once, and the tokens.
  """
  averages = 2 if config.optimizer.name == 'adamw' else 1
  state = num_parameters(config.model) * (2 + averages)
  tokens = config.run.batch_size * config.data.sequence_length
  return 4 * (state + tokens // config.optimizer.accumulate * config.model.vocab_size + 3 * tokens)


def memory_of_machine(groups: Path = Path('/sys/fs/cgroup')) -> int:
  """Bytes of memory of this machine, or of the container that this process is in, if that has less."""
  found = [os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')]
  for name in ('memory.max', 'memory/memory.limit_in_bytes'):
    path = groups / name
    text = path.read_text().strip() if path.is_file() else ''
    found += [int(text)] if text.isdecimal() else []
  return min(found)
