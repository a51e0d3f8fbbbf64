"""Gradients of one or several models, at one or several steps, each over enough batches to give an interval."""

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
from training.metric_names import OUTPUT, SUBLAYERS, MetricName
from training.metrics import by_site
from training.run_files import run_directory
from training.run_files.trained_run import CheckpointDeleted, checkpoint_steps, checkpointed_state

ATTEMPTS = 5  # at the newest checkpoint of a run that is in training


@dataclasses.dataclass(frozen=True)
class Subject:
  """What is measured.

  Attributes:
    name: of the model.
    config: its config.
    step: of its training; 0: the initial values.
    directory: of the run, or None where each batch has initial values of its own, from the seeds that follow.
  """

  name: str
  config: Config
  step: int = 0
  directory: Path | None = None


@dataclasses.dataclass(frozen=True)
class Measured:
  """A subject, and every measure of `training.inspection.inspect` with a leading axis of batches."""

  subject: Subject
  samples: Mapping[str, np.ndarray]

  def mean(self, measure: str) -> np.ndarray:
    """Over the batches."""
    return self.samples[measure].mean(0)

  def half_width(self, measure: str) -> np.ndarray:
    """Of the 95% interval of the mean over the batches."""
    return statistics.half_width(self.samples[measure])

  @property
  def layers(self) -> int:
    """L."""
    return self.subject.config.model.num_layers

  @property
  def label(self) -> str:
    """The model's name, and the step or, where only depths differ, the depth."""
    if self.subject.directory is None:
      return f'{self.subject.name}, {self.layers} layers'
    return f'{self.subject.name}, ' + (f'step {self.subject.step}' if self.subject.step else 'init')


def measure(subject: Subject, batches: int) -> Measured:
  """Measures a subject on the batches that its next training steps would take (the first, for the initial values).

  Raises:
    ConfigError: if the data cannot be read or have changed since, or the checkpoint is another model's.
    CheckpointDeleted: see `training.run_files.trained_run.checkpointed_state`.
  """
  config = subject.config.replace({'model.unroll': 1, 'model.remat': False})
  data = load_data(config)
  if subject.directory is not None:
    run_directory.check_data(subject.directory, data.checksum)
  inputs = train_batches(data, config.run.batch_size, config.data.seed, subject.step, batches)
  samples = [
    inspect(config, params, batch, by_sequence=True)
    for params, batch in zip(_params(subject, config, batches), inputs, strict=True)
  ]
  return Measured(subject, {name: np.stack([sample[name] for sample in samples]) for name in samples[0]})


def measure_in_time(subject: Subject, asked: str, batches: int) -> tuple[list[Measured], str]:
  """What `measure` gives, of a run that may be in training; and what was left out, with the reason, or nothing.

  Where training has deleted the checkpoint meanwhile, --step=latest takes the one that is the newest then, and
  --step=all leaves it out.

  Raises:
    ConfigError: where a step was asked for by its number, or checkpoints are deleted faster than they can be read.
  """
  for _ in range(ATTEMPTS):
    try:
      return [measure(subject, batches)], ''
    except CheckpointDeleted as error:
      there = checkpoint_steps(subject.directory) if subject.directory else []
      if asked == 'all':
        return [], str(error)
      if asked != 'latest' or not there:
        raise ConfigError(str(error)) from None
      subject = dataclasses.replace(subject, step=there[-1])
  raise ConfigError(f'{subject.directory}: checkpoints are deleted faster than they can be read: wait for its end')


def _params(subject: Subject, config: Config, count: int) -> Iterator[Any]:
  """The parameters for each batch."""
  seed = config.run.init_seed
  init = jax.jit(lambda seed: model.init(config.model, jax.random.key(seed)))
  if subject.step:
    assert subject.directory is not None
    params = checkpointed_state(subject.config, subject.directory, subject.step).params
  else:
    params = init(np.uint32(seed))
  for k in range(count):
    yield params if subject.directory is not None or k == 0 else init(np.uint32(seed + k))


def as_json(values: np.ndarray) -> Any:
  """Nested lists; None for what is not finite, which JSON does not have."""
  nullable = np.asarray(values).astype(object)
  nullable[~np.isfinite(values)] = None
  return nullable.tolist()


def as_table(measured: Sequence[Measured]) -> pd.DataFrame:
  """One row a model, step, layer, sublayer and measure: the mean over the batches and its 95% interval.

  `sublayer` is also the name of a parameter, or `head_0`; `layer` is missing for what lies outside the blocks, and the
  number of layers for the output of the stack.
  """
  return pd.DataFrame.from_records([row for one in measured for row in _rows(one)])


def _rows(measured: Measured) -> Iterator[dict[str, Any]]:
  subject = measured.subject
  for name in measured.samples:
    parsed, mean, half = MetricName.parse(name), measured.mean(name), measured.half_width(name)
    for (layer, sublayer), one, width in zip(_where(parsed, mean, subject), mean.ravel(), half.ravel(), strict=True):
      yield {
        'model': subject.name,
        'step': subject.step,
        'layer': layer,
        'sublayer': sublayer,
        'measure': 'total' if name == OUTPUT else parsed.measure,
        'mean': one,
        'low': one - width,
        'high': one + width,
        'batches': len(measured.samples[name]),
      }


def _where(name: MetricName, values: np.ndarray, subject: Subject) -> list[tuple[int | None, str]]:
  """(layer, sublayer) of each number of a measure, in the order of `values`."""
  if name.site:
    return [(k, name.site) for k in range(len(values))] if values.ndim else [(None, name.site)]
  if name.measure == 'loss':
    return [(None, '')]
  if name.measure == OUTPUT:
    return [(subject.config.model.num_layers, OUTPUT)]
  return [(layer, site or SUBLAYERS[1]) for layer, site, _ in by_site(name.measure, values)]
