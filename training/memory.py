"""Where XLA's programs have their memory from on a CPU, and what they leave of it."""

import ctypes
import sys

import jax


def release_freed_memory() -> None:
  """Gives what compiling has used and freed back to the system: 200 MB, which the heap of a worker would keep."""
  trim = getattr(ctypes.CDLL(None), 'malloc_trim', None) if sys.platform == 'linux' else None  # glibc has it
  if trim is not None:
    trim(0)


def run_inline() -> None:
  """Has a CPU's programs run on the thread that calls them, one at a time; to be called before JAX has a backend.

  One that is dispatched while another runs has its buffers already, which is twice the memory. And it has them from a
  thread of XLA's, whose own heap holds nothing over 64 MB: glibc would map them, fault their pages in and give them
  back at every step. Elsewhere than on a CPU, and for programs on several devices, this changes nothing.
  """
  jax.config.update('jax_cpu_enable_async_dispatch', False)  # JAX reads no environment variable for it
