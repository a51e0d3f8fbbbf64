"""The cache folder, for tokens and compiled programs."""

import os
import warnings
from pathlib import Path

import jax
import platformdirs
from absl import logging

from training.files import write_atomically
from training.home import temporary_folder
from training.memory import release_freed_memory


def cache_directory() -> Path:
  """BLOCKLAB_CACHE from the environment, or the user's cache folder, or (without a home folder) a temporary one."""
  named = os.environ.get('BLOCKLAB_CACHE')
  try:
    return Path(named or platformdirs.user_cache_dir('blocklab'))
  except RuntimeError:  # the home folder cannot be determined
    return temporary_folder()


def try_write(path: Path, *parts) -> bool:
  """Writes a cache file atomically; logs a warning if it cannot be written.

  Args:
    path: the file's path; its folder is created.
    *parts: bytes, or arrays of bytes, to be concatenated.

  Returns:
    Whether it was written. If not, nothing is left behind.
  """
  try:
    write_atomically(path, *parts)
  except OSError as error:
    logging.warning('cannot write to the cache folder %s (%s): working in memory', path.parent, error.strerror)
    return False
  return True


def enable_compilation_cache() -> None:
  """Turns on JAX's persistent compilation cache, or logs a warning if its folder is not writable."""
  folder = cache_directory() / 'compiled'
  try:
    folder.mkdir(parents=True, exist_ok=True)
    writable = os.access(folder, os.W_OK)
  except OSError:
    writable = False
  if not writable:
    logging.warning('cannot write to the cache folder %s: compiled programs are not cached', folder)
    return
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


def compile_with_cache(function, *arguments):
  """Lowers and compiles a jitted function; deletes an unreadable cache entry, which JAX would never replace."""
  lowered = function.lower(*arguments)
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    compiled = lowered.compile()
  release_freed_memory()
  for warning in caught:
    if 'Error reading persistent compilation cache entry' in str(warning.message):
      folder = cache_directory() / 'compiled'
      name = f'jit_{function.__name__}'
      logging.warning('deleting unreadable compiled programs %s-* in %s', name, folder)
      for entry in folder.glob(f'{name}-*'):
        entry.unlink(missing_ok=True)
    else:
      warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
  return compiled
