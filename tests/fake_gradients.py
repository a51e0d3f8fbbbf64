"""Fake gradient measurements: random numbers of the right shapes."""

from pathlib import Path

import numpy as np

from lab.inspect.gradients import GradientSamples, InspectedModel
from training.config import Config

BATCHES = 3


def measured(
  layers: int, name: str = 'post', last=None, step: int = 0, directory: Path | None = None, seed: int = 0
) -> GradientSamples:
  """Measurements of a model of this many layers; `last` sets the gradient norm of the last feed-forward, by batch."""
  rng = np.random.default_rng(seed)

  def draw(*shape: int) -> np.ndarray:
    return rng.uniform(0.5, 2, size=(BATCHES, *shape))

  samples = {part: draw(layers, 2) for part in ('total', 'skip', 'branch', 'gain', 'stream_rms')}
  samples |= {'cosine': rng.uniform(-1, 1, (BATCHES, layers, 2)), 'output': draw(), 'loss': draw()}
  samples |= {'attention_entropy': draw(layers, 2), 'silent_units': draw(layers), 'grad_norm/head': draw()}
  samples |= {f'{kind}/feed_forward/down': draw(layers) for kind in ('grad_norm', 'sequence_grad_norm')}
  if last is not None:
    samples['grad_norm/feed_forward/down'][:, -1] = last
  config = Config().replace({'model.num_layers': layers, 'model.num_heads': 2})
  return GradientSamples(InspectedModel(name, config, step, directory), samples)
