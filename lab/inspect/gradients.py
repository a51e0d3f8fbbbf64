"""Measures gradients of models at selected training steps, on several batches each, to obtain confidence intervals."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

import model
from lab.analysis import statistics
from training.config import Config, ConfigError
from training.data.batches import train_batches
from training.data.loading import load_data
from training.inspection import inspect
from training.metric_names import CONNECTION_WEIGHTS, OUTPUT, SUBLAYERS, MetricName
from training.metrics import by_site
from training.run_files import run_directory
from training.run_files.trained_run import CheckpointDeleted, checkpoint_steps, checkpointed_state

ATTEMPTS = 5  # to read the latest checkpoint of a run that is still training


@dataclasses.dataclass(frozen=True)
class InspectedModel:
  """A model at one training step.

  Attributes:
    name: its name in tables and figures.
    config: its config.
    step: the training step; 0: the initial parameters.
    directory: the directory of its run; None if there is no run. Then each batch is measured with its own initial
      parameters, from consecutive seeds.
  """

  name: str
  config: Config
  step: int = 0
  directory: Path | None = None


@dataclasses.dataclass(frozen=True)
class GradientSamples:
  """A model, and every metric of `training.inspection.inspect` with a leading axis of batches."""

  model: InspectedModel
  samples: Mapping[str, np.ndarray]

  def mean(self, metric: str) -> np.ndarray:
    """The mean over the batches."""
    return self.samples[metric].mean(0)

  def half_width(self, metric: str) -> np.ndarray:
    """The half-width of the 95% interval of the mean over the batches."""
    return statistics.half_width(self.samples[metric])

  @property
  def batches(self) -> int:
    """The number of batches."""
    return len(self.samples['loss'])

  @property
  def layers(self) -> int:
    """The number of layers, L."""
    return self.model.config.model.num_layers

  @property
  def has_empty_path(self) -> bool:
    """Whether no gradient flows along the skip path or through the branch of some sublayer."""
    return any(bool((self.mean(path) == 0).any()) for path in ('skip', 'branch'))

  @property
  def label(self) -> str:
    """The name of the model and its step or, without a run, its depth."""
    if self.model.directory is None:
      return f'{self.model.name}, {self.layers} layers'
    return f'{self.model.name}, ' + (f'step {self.model.step}' if self.model.step else 'init')


def measure(inspected: InspectedModel, batches: int) -> GradientSamples:
  """Measures a model on the batches of its next training steps.

  Raises:
    ConfigError: if the data cannot be read or have changed, or the checkpoint belongs to another model.
    CheckpointDeleted: see `training.run_files.trained_run.checkpointed_state`.
  """
  config = inspected.config.replace({'model.unroll': 1, 'model.remat': False})
  data = load_data(config)
  if inspected.directory is not None:
    run_directory.check_data(inspected.directory, data.checksum)
  inputs = train_batches(data, config.run.batch_size, config.data.seed, inspected.step, batches)
  samples = [
    inspect(config, params, batch, by_sequence=True)
    for params, batch in zip(_params_by_batch(inspected, config, batches), inputs, strict=True)
  ]
  return GradientSamples(inspected, {name: np.stack([sample[name] for sample in samples]) for name in samples[0]})


def measure_with_retries(inspected: InspectedModel, step: str, batches: int) -> tuple[list[GradientSamples], str]:
  """Measures a model whose run may still be training, and may therefore delete older checkpoints.

  If the checkpoint is deleted in the meantime, --step=latest measures the new latest checkpoint, and --step=all skips
  it.

  Args:
    inspected: the model to measure.
    step: the value of --step.
    batches: the number of batches.

  Returns:
    The measurement, if any, and the reason if the checkpoint was skipped, otherwise ''.

  Raises:
    ConfigError: if --step is a number and its checkpoint is deleted, or the latest is deleted again and again.
  """
  for _ in range(ATTEMPTS):
    try:
      return [measure(inspected, batches)], ''
    except CheckpointDeleted as error:
      steps = checkpoint_steps(inspected.directory) if inspected.directory else []
      if step == 'all':
        return [], str(error)
      if step != 'latest' or not steps:
        raise ConfigError(str(error)) from None
      inspected = dataclasses.replace(inspected, step=steps[-1])
  raise ConfigError(
    f'{inspected.directory}: checkpoints are deleted faster than they can be read: wait until training ends'
  )


def _params_by_batch(inspected: InspectedModel, config: Config, count: int) -> Iterator[Any]:
  """The parameters to measure each batch with."""
  seed = config.run.init_seed
  init = jax.jit(lambda seed: model.init(config.model, jax.random.key(seed)))
  if inspected.step:
    assert inspected.directory is not None
    params = checkpointed_state(inspected.config, inspected.directory, inspected.step).params
  else:
    params = init(np.uint32(seed))
  for k in range(count):
    yield params if inspected.directory is not None or k == 0 else init(np.uint32(seed + k))


def as_json(values: np.ndarray) -> Any:
  """Nested lists, with None for non-finite numbers, which JSON cannot represent."""
  nullable = np.asarray(values).astype(object)
  nullable[~np.isfinite(values)] = None
  return nullable.tolist()


def as_dataframe(measured: Sequence[GradientSamples]) -> pd.DataFrame:
  """One row for each model, step, layer, sublayer and metric, with the mean over the batches and its 95% interval.

  The column `sublayer` also contains names of parameters and heads, such as `head_0`. `layer` is missing for parameters
  outside the blocks, and is the number of layers for the output of the stack.
  """
  return pd.DataFrame.from_records([row for one in measured for row in _rows(one)])


def _rows(measured: GradientSamples) -> Iterator[dict[str, Any]]:
  inspected = measured.model
  for name in measured.samples:
    if name in CONNECTION_WEIGHTS:  # arrays: in gradients.json alone
      continue
    parsed, mean, half_width = MetricName.parse(name), measured.mean(name), measured.half_width(name)
    locations = _locations(parsed, mean, inspected)
    for (layer, sublayer), value, half in zip(locations, mean.ravel(), half_width.ravel(), strict=True):
      yield {
        'model': inspected.name,
        'step': inspected.step,
        'layer': layer,
        'sublayer': sublayer,
        'measure': 'total' if name == OUTPUT else parsed.measure,
        'mean': value,
        'low': value - half,
        'high': value + half,
        'batches': measured.batches,
      }


def _locations(name: MetricName, values: np.ndarray, inspected: InspectedModel) -> list[tuple[int | None, str]]:
  """(layer, sublayer) of each number of a metric, in the order of `values`."""
  if name.site:
    return [(k, name.site) for k in range(len(values))] if values.ndim else [(None, name.site)]
  if name.measure == 'loss':
    return [(None, '')]
  if name.measure == OUTPUT:
    return [(inspected.config.model.num_layers, OUTPUT)]
  return [(layer, site or SUBLAYERS[1]) for layer, site, _ in by_site(name.measure, values)]
