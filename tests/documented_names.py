"""Whether a name that the documentation mentions exists in the code."""

import functools
import importlib


def resolves(name: str) -> bool:
  """Whether `package.module.attribute` can be imported."""
  parts = name.split('.')
  for length in range(len(parts), 0, -1):
    try:
      module = importlib.import_module('.'.join(parts[:length]))
    except ModuleNotFoundError:
      continue
    return functools.reduce(lambda value, part: getattr(value, part, None), parts[length:], module) is not None
  return False
