"""The leaves of the parameter tree: which are stacked by layer, which are kernels, and their names.

A path is that of a leaf in the parameters, or in a state that contains them, as `jax.tree.map_with_path` passes it.
"""

from typing import Any

BLOCKS, KERNEL = 'blocks', 'kernel'


def is_stacked(path) -> bool:
  """Whether the leaf belongs to the blocks: then its first axis is the layers."""
  return BLOCKS in _keys(path)


def is_kernel(path) -> bool:
  """Whether the leaf is the matrix of a linear layer."""
  return _keys(path)[-1] == KERNEL


def parameter_name(path) -> str:
  """The name of a parameter, such as `attention/query`; `blocks` and `kernel` are not part of it."""
  keys = _keys(path)
  return '/'.join(keys[keys[0] == BLOCKS : len(keys) - (keys[-1] == KERNEL)])


def _keys(path) -> list[Any]:
  return [getattr(key, 'key', None) for key in path]
