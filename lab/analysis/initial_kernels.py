"""How the kernels of a run were initialised, from its config."""

import math
from collections.abc import Mapping
from typing import Any

from model.config import ModelConfig
from model.initialisation import BRANCH_OUTPUTS, depth_scale, stated_kernel
from training import ideas
from training.config import IDEA, IDEA_FILE

KERNELS = (
  'attention/query', 'attention/key', 'attention/value', 'attention/output', 'feed_forward/gate', 'feed_forward/up',
  'feed_forward/down',
)  # fmt: skip
PATHS = (*(f'blocks/{name}/kernel' for name in KERNELS), 'head/kernel')


def kernel_scheme(config: Mapping[str, Any]) -> tuple[Any, ...]:
  """What determines the distributions of the kernels that every model has, apart from their shapes.

  Two runs with the same scheme and seed had the same initial values of parameters with the same path and shape. If the
  file that registered the connection is not loaded, what the connection changes is not known.

  Args:
    config: of the run, flat.
  """
  model = _model(config)
  if model is None:
    depth = config['model.num_layers'] if config['model.init_depth_scale'] else None
    return config['model.init'], config[IDEA], depth
  return model.init, *((depth_scale(model, path), stated_kernel(model, path)) for path in PATHS)


def describe_initialisation(config: Mapping[str, Any]) -> str:
  """The scheme in words: 'fan_in with depth scale'.

  Args:
    config: of the run, flat.
  """
  init, connection, model = config['model.init'], config['model.connection'], _model(config)
  if connection == 'deepnorm':
    return f'{init} with DeepNorm scaling'
  stated: dict[str, list[str]] = {}
  for path in PATHS:
    if model and (source := stated_kernel(model, path)):
      stated.setdefault(type(source).__name__.lower(), []).append(path.removesuffix('/kernel').rpartition('/')[2])
  if stated:
    kernels = ' and '.join(f'{kind} {"/".join(names)}' for kind, names in stated.items())
    return f'{init} with {kernels} kernels'
  if model and not _scales_by_depth_as_usual(model):
    return f'{init} with the scaling of {connection}'
  return f'{init} {"with" if config["model.init_depth_scale"] else "without"} depth scale'


def _model(config: Mapping[str, Any]) -> ModelConfig | None:
  """The model of a run; None if the file that registered a part of it is not loaded."""
  if config.get(IDEA) and not ideas.is_loaded(config[IDEA]):
    return None
  return ModelConfig(
    **{
      path.removeprefix('model.'): value
      for path, value in config.items()
      if path.startswith('model.') and path not in (IDEA, IDEA_FILE)
    }
  )


def _scales_by_depth_as_usual(model: ModelConfig) -> bool:
  usual = (2 * model.num_layers) ** -0.5 if model.init_depth_scale else 1.0
  outputs = {f'blocks/{name}/kernel' for name in BRANCH_OUTPUTS}
  return all(math.isclose(depth_scale(model, path), usual if path in outputs else 1.0) for path in PATHS)
